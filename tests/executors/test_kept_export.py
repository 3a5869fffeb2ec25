"""A run that fails its last check has not trained in vain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tfx import types

from generic_trainer import ServingContract
from generic_trainer.errors import ModelValidationError
from tests import helpers

# Counts its trainings in a file beside the module, and writes a metric.
COUNTS = """
def run_fn(fn_args):
    with open({counter!r}, "a") as file:
        file.write("trained ")
    print("trained, as the log says")
    with tf.summary.create_file_writer(fn_args.model_run_dir + "/train").as_default():
        tf.summary.scalar("loss", 0.25, step=7)
    export(fn_args.serving_model_dir)
    export(fn_args.eval_model_dir)
"""
WRONG = ServingContract(signatures=("predict",)).to_json()
ALSO_WRONG = ServingContract(signatures=("classify",)).to_json()


class Node:
    """A trainer that runs again and again, in new directories each time."""

    def __init__(self, root: Path, examples: types.Artifact) -> None:
        self._root, self._examples = root, examples
        self._counter, self.runs = root / "counter", 0
        source = COUNTS.format(counter=str(self._counter))
        self._module_file = helpers.write_module(root / "code", source)

    @property
    def trainings(self) -> int:
        return self._counter.read_text().count("trained")

    def run(self, contract: str = "") -> dict[str, Any]:
        """Runs the executor; returns the outputs of this run."""
        self.runs += 1
        outputs = helpers.output_artifacts(self._root / "node", self.runs)
        helpers.train(self._module_file, self._examples, outputs, contract=contract)
        return outputs

    def fail(self, contract: str) -> str:
        """Runs the executor; returns the message of the check that fails."""
        with pytest.raises(ModelValidationError) as caught:
            self.run(contract)
        return str(caught.value)

    def kept(self, number: int) -> Path:
        return self._root / "node" / "model_run" / f"{number}.failed"


@pytest.fixture
def node(tmp_path: Path, examples: types.Artifact) -> Node:
    return Node(tmp_path, examples)


def test_a_corrected_contract_publishes_what_was_trained(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    assert "'predict'" in node.fail(WRONG)
    message = node.fail(ALSO_WRONG)
    assert "'classify'" in message
    assert f"The export in {node.kept(1)}, which this run checked instead of training" in message
    outputs = node.run()
    assert node.trainings == 1
    assert f"Not training: the run of {node.kept(1)} had the same inputs" in caplog.text
    model, model_run = outputs["model"][0], Path(outputs["model_run"][0].uri)
    assert sorted(path.name for path in Path(model.uri).iterdir()) == [
        "Format-Serving",
        "Format-TFMA",
    ]
    assert model.get_string_custom_property("trained_in") == str(node.kept(1))
    assert model.get_float_custom_property("train/loss") == 0.25
    assert "trained, as the log says" in helpers.kept_log(outputs)
    names = {path.name for path in model_run.iterdir()}
    assert names - {"progress-chief.jsonl"} == {  # a training of a moment has nothing to say there
        "live.html",
        "progress-run.jsonl",
        "report.html",
        "report.json",
        "train",
        "training.log",
    }
    assert "<figcaption>loss" in (model_run / "report.html").read_text()  # of the other's training
    assert not node.kept(1).exists()
    assert list((node.kept(1).parents[1] / ".checkpoints").iterdir()) == []
    assert not list(node.kept(1).parent.glob("*.lock"))
