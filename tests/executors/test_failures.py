"""Runs of the executor that must fail: with which error, and what they leave."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from generic_trainer import ServingContract
from generic_trainer.errors import (
    ConfigurationError,
    DataError,
    ExportError,
    ModelValidationError,
    TrainingError,
)
from tests import helpers
from tests.executors.conftest import PLAIN, Node


@pytest.mark.parametrize(
    ("name", "error"), [("report.json", ExportError), ("training.log", TrainingError)]
)
def test_tells_what_cannot_be_written(name: str, error: type[Exception], node: Node) -> None:
    (node.path("model_run") / name).mkdir()
    with pytest.raises(error, match=re.escape(name)):
        node.run()
    assert not node.published.exists()


def test_a_broken_model_is_refused_and_kept(node: Node) -> None:
    source = f"""{PLAIN}
    with open(fn_args.serving_model_dir + "/saved_model.pb", "r+b") as file:
        file.truncate(100)
    """
    with pytest.raises(ModelValidationError, match="failed its checks and is not published"):
        node.run(source)
    assert node.names("model") == node.names("infra_blessing") == []
    assert not json.loads((node.failed / "report.json").read_text())["passed"]
    rejected = node.failed / "rejected_export" / "Format-Serving" / "saved_model.pb"
    assert rejected.stat().st_size == 100


def test_no_export_is_an_error_that_says_where(node: Node) -> None:
    with pytest.raises(ExportError, match=r"without exporting a model: expected a SavedModel"):
        node.run("def run_fn(fn_args): ...")
    assert node.names("model") == []


def test_failing_run_fn_publishes_nothing_and_keeps_its_traces(node: Node) -> None:
    source = f"{PLAIN}    print('about to fail')\n    raise ValueError('loss is not finite')"
    with pytest.raises(TrainingError, match="loss is not finite") as caught:
        node.run(source)
    assert node.module_file in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)
    # An orchestrator that cleans up after a failed step removes both, so both must exist.
    assert node.names("model") == node.names("model_run") == []
    assert "about to fail" in (node.failed / "training.log").read_text()
    assert (node.failed / "rejected_export" / "Format-Serving" / "saved_model.pb").exists()


CONTRACT = ServingContract(label_keys=("y", "lable")).to_json()
REHEARSED = ServingContract(rehearse=True).to_json()


@pytest.mark.parametrize(
    ("tf_config", "properties", "message"),
    [
        ("{", {}, "must be a JSON object"),
        (
            None,
            {"eval_config": '{"modelSpecs": [{"labelKey": "z"}]}'},
            r"The Evaluator would fail .*'z'",
        ),
        (None, {"contract": CONTRACT}, "no feature 'lable' in the schema or the exam"),
        (None, {"contract": REHEARSED}, r"The untrained export failed .*\n.*signature"),
    ],
    ids=["damaged TF_CONFIG", "eval config", "label", "signature"],
)
def test_what_is_known_to_be_wrong_costs_no_training(
    tf_config: str | None,
    properties: dict[str, Any],
    message: str,
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = """
    def export_fn(fn_args):
        tf.saved_model.save(Doubler(), fn_args.serving_model_dir, signatures={})

    def run_fn(fn_args):
        raise AssertionError("must not be called")
    """
    if tf_config is not None:
        monkeypatch.setenv("TF_CONFIG", tf_config)
    with pytest.raises((ConfigurationError, ModelValidationError), match=message):
        node.run(source, inputs=node.schema(), **properties)


@pytest.mark.parametrize("severity", ["skip", "warn"])
def test_an_eval_config_is_as_severe_as_the_contract_says(
    node: Node, severity: str, caplog: pytest.LogCaptureFixture
) -> None:
    of_checks = {"eval_config": severity, "eval_rehearsal": "skip"}
    node.run(
        inputs=node.schema(),
        eval_config='{"modelSpecs": [{"labelKey": "y"}], "slicingSpecs": [{"featureKeys": ["z"]}]}',
        contract=ServingContract(severities=of_checks).to_json(),
    )
    assert node.names("model") == ["Format-Serving"]
    assert ("feature 'z' is not" in caplog.text) == (severity == "warn")


def test_an_empty_eval_split_costs_no_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path, helpers.write_examples(tmp_path / "examples", {"train": 32, "eval": 0}))
    node.run(inputs=node.schema())
    assert node.names("model") == ["Format-Serving"]
    assert "has no examples: the checks score" in caplog.text


def test_a_corrupt_file_is_named(tmp_path: Path) -> None:
    node = Node(tmp_path, helpers.write_examples(tmp_path / "examples"))
    (corrupt,) = (tmp_path / "examples" / "Split-train").iterdir()
    content = bytearray(corrupt.read_bytes())
    content[len(content) // 2] ^= 0xFF
    corrupt.write_bytes(bytes(content))
    source = """
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2
    from tfx_bsl.public import tfxio

    def run_fn(fn_args):
        with open(fn_args.schema_path) as file:
            schema = text_format.Parse(file.read(), schema_pb2.Schema())
        options = tfxio.TensorFlowDatasetOptions(batch_size=4, num_epochs=1)
        factory = fn_args.data_accessor.tf_dataset_factory
        for batch in factory(fn_args.train_files, options, schema).take(100):
            pass
    """
    with pytest.raises(DataError, match=re.escape(str(corrupt))):
        node.run(source, inputs=node.schema())
