"""What `run_fn` finds in its argument."""

import copy
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import attr
import pytest
import tensorflow as tf
from tfx import types
from tfx.components.experimental.data_view import constants
from tfx.components.trainer import fn_args_utils
from tfx.components.util import examples_utils
from tfx.proto import example_gen_pb2
from tfx.utils import path_utils
from tfx_bsl.coders import tf_graph_record_decoder
from tfx_bsl.public import tfxio

from generic_trainer.cli import _fn_args
from generic_trainer.errors import ConfigurationError, DataError
from generic_trainer.executors._fn_args import FnArgs, make_fn_args
from generic_trainer.executors._request import request_from_artifacts
from tests import helpers
from tests.executors.conftest import Node
from tests.helpers import artifact_at


@pytest.fixture
def fn_args_for(node: Node, tmp_path: Path) -> Any:
    module_file = helpers.write_module(tmp_path, "def run_fn(fn_args): ...")

    def build(
        inputs: dict[str, Any] | None = None, make: Any = make_fn_args, **properties: Any
    ) -> FnArgs:
        request = request_from_artifacts(
            {"examples": [node.examples], **(inputs or {})},
            node.outputs,
            helpers.exec_properties(**{"module_file": module_file, **properties}),
            scratch_dir=str(tmp_path),
        )
        return make(request, export_dir=str(tmp_path / "export"))

    return build


def test_paths_and_defaults(fn_args_for: Any, node: Node, tmp_path: Path) -> None:
    fn_args = fn_args_for()
    assert isinstance(fn_args, fn_args_utils.FnArgs)
    assert fn_args.train_files == [f"{node.examples.uri}/Split-train/*"]
    assert fn_args.eval_files == [f"{node.examples.uri}/Split-eval/*"]
    assert fn_args.serving_model_dir == path_utils.serving_model_dir(f"{tmp_path}/export")
    assert fn_args.eval_model_dir == path_utils.eval_model_dir(f"{tmp_path}/export")
    assert fn_args.serving_model_dir.endswith("/export/Format-Serving")
    assert fn_args.eval_model_dir.endswith("/export/Format-TFMA")
    assert fn_args.model_run_dir == str(node.path("model_run"))
    assert Path(fn_args.checkpoint_dir).parent == node.root / "node" / ".checkpoints"
    absent = "schema_path schema_file transform_graph_path transform_output base_model "
    for name in (absent + "hyperparameters custom_config").split():
        assert getattr(fn_args, name) is None
    assert fn_args.extra_inputs == {}
    assert fn_args.num_examples == {"train": 32, "eval": 8}


def test_fields_can_be_handed_on_as_those_of_tfx(fn_args_for: Any) -> None:
    fn_args = fn_args_for(custom_config={"epochs": 3})
    of_tfx = fn_args_utils.FnArgs(**attr.asdict(fn_args, recurse=False))
    assert vars(of_tfx) == vars(fn_args)
    for again in (copy.copy(fn_args), copy.deepcopy(fn_args)):
        assert again.custom_config == {"epochs": 3}
        assert again.checkpoint_dir == fn_args.checkpoint_dir


def test_only_the_files_to_train_on_must_be_there(
    fn_args_for: Any, examples: types.Artifact, tmp_path: Path
) -> None:
    """As with TFX: `run_fn` may read no other split, nor all spans."""
    first = helpers.write_examples(tmp_path / "first")
    shutil.rmtree(tmp_path / "first" / "Split-eval")
    fn_args = fn_args_for({"examples": [first]})
    assert (fn_args.eval_files, fn_args.num_examples) == ([], {"train": 32})
    with pytest.raises(DataError, match="No file matches an empty list of patterns"):
        fn_args.data_accessor.tf_dataset_factory(
            fn_args.eval_files, tfxio.TensorFlowDatasetOptions(batch_size=8), helpers.read_schema()
        )
    shutil.rmtree(tmp_path / "first" / "Split-train")
    fn_args = fn_args_for({"examples": [first, examples]})
    assert fn_args.train_files == [f"{examples.uri}/Split-train/*"]
    assert fn_args.num_examples == {"train": 32, "eval": 8}
    with pytest.raises(DataError, match="first/Split-train"):
        fn_args_for({"examples": [first]})


def test_no_steps_means_no_limit(fn_args_for: Any) -> None:
    fn_args = fn_args_for(train_args='{"num_steps": 0}', eval_args="{}")
    assert (fn_args.train_steps, fn_args.eval_steps) == (None, None)
    fn_args = fn_args_for(train_args='{"num_steps": 7}', eval_args='{"num_steps": 3}')
    assert (fn_args.train_steps, fn_args.eval_steps) == (7, 3)


def test_a_run_of_one_pass_knows_its_steps_from_its_datasets(fn_args_for: Any) -> None:
    fn_args = fn_args_for(make=_fn_args.make_fn_args)
    options = tfxio.TensorFlowDatasetOptions(batch_size=5)
    make_dataset = fn_args.data_accessor.tf_dataset_factory
    make_dataset(fn_args.train_files, options._replace(num_epochs=1), helpers.read_schema())
    assert fn_args.train_steps is None  # the dataset ends by itself
    for size in (32, 5, 8):  # the smallest batches are those of fit
        sized = options._replace(batch_size=size)
        make_dataset(fn_args.train_files, sized, helpers.read_schema())
    assert (fn_args.train_steps, fn_args.eval_steps) == (7, None)
    make_dataset(fn_args.eval_files, options, helpers.read_schema())
    assert (fn_args.train_steps, fn_args.eval_steps) == (7, 2)
    given = fn_args_for(make=_fn_args.make_fn_args, train_args='{"num_steps": 3}')
    given.data_accessor.tf_dataset_factory(given.train_files, options, helpers.read_schema())
    assert given.train_steps == 3


def test_splits_of_several_spans(
    fn_args_for: Any, examples: types.Artifact, tmp_path: Path
) -> None:
    second = helpers.write_examples(tmp_path / "second")
    fn_args = fn_args_for(
        {"examples": [examples, second]},
        train_args='{"splits": ["train", "eval"]}',
        eval_args='{"splits": ["eval"]}',
    )
    assert fn_args.train_files == [
        f"{artifact.uri}/Split-{split}/*"
        for split in ("train", "eval")
        for artifact in (examples, second)
    ]
    assert len(fn_args.eval_files) == 2


def test_optional_inputs(fn_args_for: Any, tmp_path: Path) -> None:
    hyperparameters = {"space": [], "values": {"learning_rate": 0.1}}

    def make_after_a_change(request: Any, export_dir: str) -> FnArgs:
        made = make_fn_args(request, export_dir)
        made.custom_config["epochs"].clear()
        made.hyperparameters["values"].clear()
        return make_fn_args(request, export_dir)

    (tmp_path / "hparams").mkdir()
    (tmp_path / "hparams" / "best.txt").write_text(json.dumps(hyperparameters))
    fn_args = fn_args_for(
        {
            "schema": [helpers.write_schema(tmp_path / "schema")],
            "transform_graph": [artifact_at("TransformGraph", "/graph")],
            "base_model": [artifact_at("Model", "/base")],
            "hyperparameters": [artifact_at("HyperParameters", tmp_path / "hparams")],
            "statistics": [helpers.write_statistics(tmp_path / "stats", {"train": 33, "eval": 9})],
            "extra_input_embeddings": [artifact_at("Examples", uri) for uri in ("/a", "/b")],
        },
        make=make_after_a_change,
        custom_config={"epochs": [3]},
    )
    assert fn_args.schema_path == fn_args.schema_file == f"{tmp_path}/schema/schema.pbtxt"
    assert fn_args.transform_graph_path == fn_args.transform_output == "/graph"
    assert fn_args.base_model == "/base/Format-Serving"
    assert fn_args.hyperparameters == hyperparameters
    # The statistics artifact is believed: nothing is counted.
    assert fn_args.num_examples == {"train": 33, "eval": 9}
    assert fn_args.extra_inputs == {"embeddings": ["/a", "/b"]}
    assert fn_args.custom_config == {"epochs": [3]}


def test_statistics_of_transform_are_left_out(
    node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    statistics = artifact_at("ExampleStatistics", tmp_path / "post_transform_stats")
    inputs = {"examples": [node.examples], "statistics": [statistics]}
    properties = helpers.exec_properties(run_fn="a.run_fn")
    request = request_from_artifacts(inputs, node.outputs, properties, scratch_dir=str(tmp_path))
    assert request.statistics_path is None and request.num_examples is None
    assert "Pass the output of a StatisticsGen" in caplog.text


def test_inputs_of_one_channel_are_passed_once(node: Node, tmp_path: Path) -> None:
    same = {"raw_examples": "examples", "extra_input_rows": "examples"}
    same["extra_input_none"] = "schema"
    properties = helpers.exec_properties(run_fn="a.run_fn", same_inputs=json.dumps(same))
    inputs = {"examples": [node.examples]}
    request = request_from_artifacts(inputs, node.outputs, properties, scratch_dir=str(tmp_path))
    assert request.raw_examples == (node.examples.uri,)
    assert request.extra_inputs == {"rows": (node.examples.uri,), "none": ()}


def test_data_accessor_reads_the_examples(fn_args_for: Any) -> None:
    fn_args = fn_args_for()
    options = tfxio.TensorFlowDatasetOptions(batch_size=8, num_epochs=1, label_key="y")
    batches = fn_args.data_accessor.tf_dataset_factory(
        fn_args.train_files, options, helpers.read_schema()
    )
    features, labels = next(iter(batches))
    assert features["x"].shape == (8, 1)
    assert (labels.numpy() == 2 * features["x"].numpy()).all()
    record_batches = fn_args.data_accessor.record_batch_factory(
        fn_args.eval_files,
        tfxio.RecordBatchesOptions(batch_size=8, num_epochs=1),
        helpers.read_schema(),
    )
    assert sum(batch.num_rows for batch in record_batches) == 8
    assert fn_args.data_accessor.data_view_decode_fn is None


def test_data_accessor_reads_through_a_data_view(
    fn_args_for: Any, examples: types.Artifact, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uri = str(tmp_path / "view")
    tf_graph_record_decoder.save_decoder(Lengths(), uri)
    examples_utils.set_payload_format(examples, example_gen_pb2.PayloadFormat.FORMAT_PROTO)
    examples.set_string_custom_property(constants.DATA_VIEW_URI_PROPERTY_KEY, uri)
    examples.set_string_custom_property(constants.DATA_VIEW_CREATE_TIME_KEY, "1")
    fn_args = fn_args_for()
    caplog.set_level(logging.INFO, "generic_trainer")
    options = tfxio.TensorFlowDatasetOptions(batch_size=8, num_epochs=1)
    batches = fn_args.data_accessor.tf_dataset_factory(fn_args.train_files, options, None)
    assert sum(len(batch["length"]) for batch in batches) == 32
    assert "FORMAT_PROTO through TFX's own reader" in caplog.text


class Lengths(tf_graph_record_decoder.TFGraphRecordDecoder):
    """A data view that tells how long records are."""

    def decode_record(self, records: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"length": tf.strings.length(records)}


@pytest.mark.parametrize(
    ("inputs", "properties", "error", "message"),
    [
        ({"examples": []}, {}, DataError, "holds no artifact"),
        ({}, {"train_args": '{"splits": ["test"]}'}, DataError, "must have the split 'test'"),
        ({}, {"train_args": "{"}, ConfigurationError, "train_args must be JSON of TrainArgs"),
        ({}, {"custom_config": [1]}, ConfigurationError, r"must be a dict, but got \[1\]"),
        ({}, {"module_file": None}, ConfigurationError, "name no user code"),
        ({}, {"distribution": "{1"}, ConfigurationError, "Distribution: expected a JSON object"),
        ({"schema": [artifact_at("Schema", "/nowhere")]}, {}, DataError, "but /nowhere is not"),
        ({"base_model": [artifact_at("Model", u) for u in "ab"]}, {}, DataError, "there are 2: "),
    ],
)
def test_bad_inputs(
    fn_args_for: Any, inputs: Any, properties: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        fn_args_for(inputs, **properties)


@pytest.mark.parametrize("content", [b"5", b"\xff", b'{"a": 1, "a": 2}'])
def test_corrupt_hyperparameters(fn_args_for: Any, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "hparams").mkdir()
    (tmp_path / "hparams" / "best.txt").write_bytes(content)
    artifact = artifact_at("HyperParameters", tmp_path / "hparams")
    with pytest.raises(DataError, match=r"must be a JSON object, but .*/best.txt is none"):
        fn_args_for({"hyperparameters": [artifact]})
