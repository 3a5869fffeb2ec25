"""A run that fails its last check has not trained in vain."""

import json
from pathlib import Path

import pytest

from generic_trainer import ServingContract
from generic_trainer.errors import ModelValidationError
from tests import helpers
from tests.executors.conftest import FITS, Node

# Counts its trainings in a file, and writes a metric.
COUNTS = helpers.run_fn(f"""{FITS}
    fn_args.custom_config["units"].append("changed by run_fn")
    with open(fn_args.custom_config["counter"], "a") as file:
        file.write("trained ")
    print("trained, as the log says")
    with tf.summary.create_file_writer(fn_args.model_run_dir + "/train").as_default():
        tf.summary.scalar("loss", 0.25, step=7)
    export(fn_args.eval_model_dir)
""")


def run(node: Node, number: int, **properties: str) -> None:
    node.new_outputs(number)
    config = {"counter": str(node.root / "counter"), "units": []}
    node.run(COUNTS, custom_config=config, **properties)


def fail(node: Node, number: int, signature: str) -> tuple[str, Path]:
    """Runs with a contract that asks for a signature; returns the message and what is kept."""
    with pytest.raises(ModelValidationError) as caught:
        run(node, number, contract=ServingContract(signatures=(signature,)).to_json())
    assert f"'{signature}'" in str(caught.value)
    return str(caught.value), node.failed


def test_a_corrected_contract_publishes_what_was_trained(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    _, first = fail(node, 1, "predict")
    assert "changed by run_fn" not in (first / "run.json").read_text()
    goodput = json.loads((first / "report.json").read_text())["facts"]["goodput"]
    message, _ = fail(node, 2, "classify")
    assert f"The export in {first}, which this run checked instead of training" in message
    run(node, 3)
    assert (node.root / "counter").read_text().count("trained") == 1
    assert f"Not training: the run of {first} had the same inputs" in caplog.text
    assert node.names("model") == ["Format-Serving", "Format-TFMA"]
    assert node.model.get_string_custom_property("trained_in") == str(first)
    assert node.model.get_float_custom_property("train/loss") == 0.25
    assert node.model.get_float_custom_property("goodput") == goodput > 0
    assert "trained, as the log says" in helpers.kept_log(node.outputs)
    written = {"live.html", "report.html", "report.json", "run.json", "train", "training.log"}
    assert {*node.names("model_run")} == {*written, "progress-chief.jsonl", "progress-run.jsonl"}
    report = (node.path("model_run") / "report.html").read_text()
    assert "<figcaption>loss" in report  # of the other's training
    assert not first.exists()
    assert list((first.parents[1] / ".checkpoints").iterdir()) == []
    assert not list(first.parent.glob("*.lock"))
