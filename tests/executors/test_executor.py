"""A run of the executor, from the dictionaries to the published model."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tfx import types
from tfx.proto.orchestration import pipeline_pb2
from tfx.utils import import_utils, name_utils

from generic_trainer import ServingContract
from generic_trainer.errors import (
    ConfigurationError,
    DataError,
    ExportError,
    GenericTrainerError,
    ModelValidationError,
    TrainingError,
)
from generic_trainer.executors import GenericTrainerExecutor
from tests import helpers

PLAIN = "def run_fn(fn_args):\n    export(fn_args.serving_model_dir)"


def test_publishes_what_run_fn_exports(
    examples: types.Artifact, outputs: Any, tmp_path: Path
) -> None:
    del outputs["infra_blessing"]  # a pipeline may leave it out
    source = PLAIN + "\n    export(fn_args.eval_model_dir)"
    loggers = [logging.getLogger(name) for name in ("", "absl", "tensorflow")]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]
    helpers.train(helpers.write_module(tmp_path, source), examples, outputs)
    assert [(logger.level, list(logger.handlers)) for logger in loggers] == before
    serve = tf.saved_model.load(helpers.published_model(outputs)).signatures["serving_default"]
    outputs_of_two = serve(examples=tf.constant([helpers.example(3.0), helpers.example(5.0)]))
    assert outputs_of_two["outputs"].numpy().tolist() == [[6.0], [10.0]]
    assert sorted(os.listdir(outputs["model"][0].uri)) == ["Format-Serving", "Format-TFMA"]


def test_what_is_published_has_files_of_its_own(
    examples: types.Artifact, outputs: Any, tmp_path: Path
) -> None:
    source = """
    import os
    import shutil

    def run_fn(fn_args):
        blobs = fn_args.custom_config["blobs"]
        export(blobs)
        shutil.copytree(blobs, fn_args.serving_model_dir, copy_function=os.symlink)
    """
    blobs = tmp_path / "blobs"
    helpers.train(
        helpers.write_module(tmp_path, source),
        examples,
        outputs,
        custom_config={"blobs": str(blobs)},
    )
    shutil.rmtree(blobs)
    assert "serving_default" in tf.saved_model.load(helpers.published_model(outputs)).signatures


@pytest.mark.parametrize("place", ["publishing", "training"])
def test_tells_what_cannot_be_written(
    place: str, examples: types.Artifact, outputs: Any, tmp_path: Path
) -> None:
    kind: type[GenericTrainerError] = ExportError
    if place == "publishing":
        source = PLAIN + "\n    os.mkdir(fn_args.model_run_dir + '/report.json')"
    else:
        source, kind = PLAIN, TrainingError
        Path(outputs["model_run"][0].uri, "training.log").mkdir()
    module_file = helpers.write_module(tmp_path, "import os\n" + source)
    with pytest.raises(kind, match=r"report\.json|training\.log"):
        helpers.train(module_file, examples, outputs)
    assert not os.path.exists(helpers.published_model(outputs))


def test_describes_and_blesses_the_model(
    examples: types.Artifact, outputs: Any, tmp_path: Path
) -> None:
    from tfx.components.util import model_utils

    helpers.train(helpers.write_module(tmp_path, PLAIN), examples, outputs)
    assert model_utils.is_infra_validated(outputs["infra_blessing"][0])
    model = outputs["model"][0]
    assert model.get_string_custom_property("validation") == "passed"
    assert model.get_float_custom_property("size_bytes") > 1000
    manifest = Path(helpers.published_model(outputs), "manifest.json").read_bytes()
    digest = hashlib.sha256(manifest).hexdigest()
    assert model.get_string_custom_property("manifest_sha256") == digest
    assert "saved_model.pb" in json.loads(manifest)["files"]
    report = json.loads(Path(outputs["model_run"][0].uri, "report.json").read_text())
    assert report["passed"]
    assert Path(outputs["model_run"][0].uri, "report.html").read_text().startswith("<!doctype html")


def test_a_broken_model_is_refused_and_kept(
    examples: types.Artifact, outputs: Any, tmp_path: Path
) -> None:
    source = """
    def run_fn(fn_args):
        export(fn_args.serving_model_dir)
        with open(fn_args.serving_model_dir + "/saved_model.pb", "r+b") as file:
            file.truncate(100)
    """
    with pytest.raises(ModelValidationError, match="failed its checks and is not published"):
        helpers.train(helpers.write_module(tmp_path, source), examples, outputs)
    assert os.listdir(outputs["model"][0].uri) == []
    assert os.listdir(outputs["infra_blessing"][0].uri) == []
    kept = Path(outputs["model_run"][0].uri + ".failed")
    assert not json.loads((kept / "report.json").read_text())["passed"]
    assert (kept / "rejected_export" / "Format-Serving" / "saved_model.pb").stat().st_size == 100


@pytest.mark.parametrize("downstream", [["Pusher"], ["Pusher", "Evaluator.final"]])
def test_who_comes_next_decides_what_a_model_may_be(
    downstream: list[str], examples: types.Artifact, outputs: Any, tmp_path: Path
) -> None:
    source = """
    def run_fn(fn_args):
        model = tf.Module()
        one = tf.TensorSpec([1, 2], tf.float32, name="x")
        model.serve = tf.function(lambda x: {"y": x * 2.0}, input_signature=[one])
        tf.saved_model.save(model, fn_args.serving_model_dir, {"serving_default": model.serve})
    """
    context = GenericTrainerExecutor.Context(
        pipeline_node=pipeline_pb2.PipelineNode(downstream_nodes=downstream)
    )
    module_file = helpers.write_module(tmp_path, source)
    if downstream == ["Pusher"]:
        helpers.train(module_file, examples, outputs, context=context)
        assert os.path.exists(helpers.published_model(outputs))
    else:
        with pytest.raises(ModelValidationError, match="batch_dimension"):
            helpers.train(module_file, examples, outputs, context=context)


@pytest.mark.parametrize("times", [(1700000000,), (1700000000, 1700000001)])
def test_the_only_export_of_an_estimator_is_published(
    times: tuple[int, ...], examples: types.Artifact, outputs: Any, tmp_path: Path
) -> None:
    # What an estimator leaves whose `model_dir` is `fn_args.serving_model_dir`.
    source = """
    def run_fn(fn_args):
        model_dir = fn_args.serving_model_dir
        for time in TIMES:
            export(f"{model_dir}/export/chicago-taxi/{time}")
        with open(model_dir + "/checkpoint", "w") as file:
            file.write("model.ckpt-1000")
        with tf.summary.create_file_writer(model_dir).as_default():
            tf.summary.scalar("loss", 0.5, step=1000)
    """
    module_file = helpers.write_module(tmp_path, source.replace("TIMES", repr(times)))
    if len(times) > 1:
        with pytest.raises(ModelValidationError, match="presence"):
            helpers.train(module_file, examples, outputs)
        return
    helpers.train(module_file, examples, outputs)
    assert "serving_default" in tf.saved_model.load(helpers.published_model(outputs)).signatures
    assert "export" not in os.listdir(helpers.published_model(outputs))
    assert Path(outputs["model_run"][0].uri, "estimator", "checkpoint").exists()
    assert outputs["model"][0].get_float_custom_property("estimator/loss") == 0.5


def test_publishes_to_a_remote_file_system(examples: types.Artifact, tmp_path: Path) -> None:
    # A scheme makes a path remote: no `os` function takes it, only TensorFlow's file systems do.
    outputs = helpers.output_artifacts(f"file://{tmp_path}/outputs")
    source = """
    def run_fn(fn_args):
        print("trained far away")
        export(fn_args.serving_model_dir)
    """
    helpers.train(helpers.write_module(tmp_path, source), examples, outputs)
    assert tf.io.gfile.exists(helpers.published_model(outputs) + "/saved_model.pb")
    assert not tf.io.gfile.exists(outputs["model"][0].uri + "/.staging")
    with tf.io.gfile.GFile(outputs["model_run"][0].uri + "/training.log") as log:
        assert "trained far away" in log.read()


def test_replaces_what_an_earlier_attempt_left(
    examples: types.Artifact, outputs: Any, tmp_path: Path
) -> None:
    model_dir = Path(outputs["model"][0].uri)
    for leftover in (".staging/Format-Serving/half", "Format-Serving/old"):
        (model_dir / leftover).mkdir(parents=True)
    helpers.train(helpers.write_module(tmp_path, PLAIN), examples, outputs)
    assert sorted(os.listdir(helpers.published_model(outputs))) == sorted(
        name for name in os.listdir(helpers.published_model(outputs)) if name not in ("half", "old")
    )
    assert (model_dir / "Format-Serving" / "saved_model.pb").exists()
    assert os.listdir(model_dir) == ["Format-Serving"]


def test_no_export_is_an_error_that_says_where(
    examples: types.Artifact, outputs: Any, tmp_path: Path
) -> None:
    module_file = helpers.write_module(tmp_path, "def run_fn(fn_args): ...")
    with pytest.raises(ExportError, match=r"without exporting a model: expected a SavedModel"):
        helpers.train(module_file, examples, outputs)
    assert os.listdir(outputs["model"][0].uri) == []


def test_failing_run_fn_publishes_nothing_and_keeps_its_traces(
    examples: types.Artifact, outputs: Any, tmp_path: Path
) -> None:
    source = """
    def run_fn(fn_args):
        export(fn_args.serving_model_dir)
        print("about to fail")
        raise ValueError("loss is not finite")
    """
    module_file = helpers.write_module(tmp_path, source)
    with pytest.raises(TrainingError, match="loss is not finite") as caught:
        helpers.train(module_file, examples, outputs)
    assert module_file in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)
    assert os.listdir(outputs["model"][0].uri) == []
    # An orchestrator that cleans up after a failed step removes both, so both must exist.
    assert os.listdir(outputs["model_run"][0].uri) == []
    kept = Path(outputs["model_run"][0].uri + ".failed")
    assert "about to fail" in (kept / "training.log").read_text()
    assert (kept / "rejected_export" / "Format-Serving" / "saved_model.pb").exists()


def test_run_fn_by_import_path(
    examples: types.Artifact, outputs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helpers.write_module(tmp_path / "my_models", PLAIN, name="doubler.py")
    (tmp_path / "my_models" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    GenericTrainerExecutor().Do(
        {"examples": [examples]},
        outputs,
        helpers.exec_properties(run_fn="my_models.doubler.run_fn"),
    )
    assert os.path.exists(helpers.published_model(outputs))


def test_import_path_is_public() -> None:
    path = name_utils.get_full_name(GenericTrainerExecutor)
    assert path == "generic_trainer.executors.GenericTrainerExecutor"
    assert import_utils.import_class_by_path(path) is GenericTrainerExecutor


def test_output_is_kept_and_shown_at_its_level(
    examples: types.Artifact, outputs: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = """
    import logging
    import os
    import absl.logging
    from tensorflow_metadata.proto.v0 import schema_pb2
    from tfx_bsl.tfxio import tensor_representation_util

    def run_fn(fn_args):
        feature = schema_pb2.Feature(name="x", type=schema_pb2.FLOAT)
        feature.shape.dim.add(size=1)
        feature.presence.min_fraction = 1
        schema = schema_pb2.Schema(feature=[feature])
        tensor_representation_util.InferTensorRepresentationsFromMixedSchema(schema)
        print("printed")
        tf.print("printed by a graph")
        os.system("echo printed by a child process")
        logging.info("logged as info")
        absl.logging.info("logged through absl")
        tf.get_logger().info("logged through tensorflow")
        logging.warning("logged as warning")
        export(fn_args.serving_model_dir)
    """
    helpers.train(helpers.write_module(tmp_path, source), examples, outputs)
    shown = capfd.readouterr()
    log = helpers.kept_log(outputs)
    for line in ("printed", "printed by a child process"):
        assert f"\n{line}\n" in f"\n{shown.out}"
    for text in ("logged as info", "logged through absl", "logged through tensorflow"):
        assert text in shown.out
        assert text not in shown.err
    assert "Setting to DenseTensor" not in log  # by tfx_bsl
    assert "logged as warning" in shown.err
    assert "logged as warning" not in shown.out
    for text in (
        "printed\n",
        "by a graph",
        "by a child",
        "as info",
        "h absl",
        "h tensorflow",
        "as warning",
    ):
        assert log.count(text) == 1, log


def test_scalars_become_properties_of_the_model(
    examples: types.Artifact, outputs: Any, tmp_path: Path
) -> None:
    source = """
    def run_fn(fn_args):
        with tf.summary.create_file_writer(fn_args.model_run_dir + "/train").as_default():
            for step, loss in enumerate([3.0, 2.0, 1.0]):
                tf.summary.scalar("loss", loss, step=step)
            tf.summary.scalar("broken", float("nan"), step=0)
            tf.summary.histogram("weights", [1.0, 2.0], step=0)
        with tf.compat.v1.Graph().as_default():
            with tf.compat.v1.summary.FileWriter(fn_args.model_run_dir) as writer:
                value = tf.compat.v1.Summary.Value(tag="steps_per_s", simple_value=8.0)
                writer.add_summary(tf.compat.v1.Summary(value=[value]), 1)
        export(fn_args.serving_model_dir)
    """
    helpers.train(helpers.write_module(tmp_path, source), examples, outputs)
    model = outputs["model"][0]
    assert model.get_float_custom_property("train/loss") == 1.0
    assert model.get_float_custom_property("steps_per_s") == 8.0
    assert model.get_string_custom_property("train/broken") == "nan"
    assert not model.has_custom_property("train/weights")


@pytest.mark.parametrize(
    ("cluster", "task", "publishes"),
    [
        ({"chief": ["a:1"], "worker": ["b:1"]}, ("worker", 0), False),
        ({"worker": ["a:1", "b:1"]}, ("worker", 0), True),
        ({"worker": ["a:1", "b:1"]}, ("worker", 1), False),
    ],
)
def test_only_the_chief_publishes(
    cluster: Any,
    task: tuple[str, int],
    publishes: bool,
    examples: types.Artifact,
    outputs: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = {"cluster": cluster, "task": {"type": task[0], "index": task[1]}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    source = """
    def run_fn(fn_args):
        print("exports to", fn_args.serving_model_dir)
        export(fn_args.serving_model_dir)
    """
    helpers.train(helpers.write_module(tmp_path, source), examples, outputs)
    assert os.listdir(outputs["model"][0].uri) == (["Format-Serving"] if publishes else [])
    in_artifact = f"exports to {outputs['model'][0].uri}" in helpers.kept_log(outputs)
    assert in_artifact == publishes


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "must be JSON"),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
            "is worker 1, but the tasks of its cluster are worker 0",
        ),
    ],
    ids=["damaged", "an index too many"],
)
def test_a_wrong_tf_config_costs_no_training(
    config: str,
    message: str,
    examples: types.Artifact,
    outputs: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = """
    def run_fn(fn_args):
        raise AssertionError("must not be called")
    """
    monkeypatch.setenv("TF_CONFIG", config)
    module = helpers.write_module(tmp_path, source)
    with pytest.raises(ConfigurationError, match=message):
        helpers.train(module, examples, outputs)


def test_a_wrong_eval_config_costs_no_training(
    examples: types.Artifact, outputs: Any, tmp_path: Path
) -> None:
    source = """
    def run_fn(fn_args):
        raise AssertionError("must not be called")
    """
    schema = helpers.write_schema(tmp_path / "schema")
    eval_config = '{"modelSpecs": [{"labelKey": "z"}]}'
    with pytest.raises(ConfigurationError, match=r"The Evaluator would fail .*'z'"):
        helpers.train(
            helpers.write_module(tmp_path, source),
            examples,
            outputs,
            inputs={"schema": [schema]},
            eval_config=eval_config,
        )


def test_a_wrong_label_costs_no_training(
    examples: types.Artifact, outputs: Any, tmp_path: Path
) -> None:
    source = """
    def run_fn(fn_args):
        raise AssertionError("must not be called")
    """
    contract = ServingContract(label_keys=("y", "lable"))
    with pytest.raises(ConfigurationError, match="no feature 'lable' in the schema or the exam"):
        helpers.train(
            helpers.write_module(tmp_path, source),
            examples,
            outputs,
            inputs={"schema": [helpers.write_schema(tmp_path / "schema")]},
            contract=contract.to_json(),
        )


@pytest.mark.slow
def test_the_evaluator_is_rehearsed(examples: types.Artifact, outputs: Any, tmp_path: Path) -> None:
    eval_config = """{
      "modelSpecs": [{"labelKey": "y"}],
      "slicingSpecs": [{}],
      "metricsSpecs": [{"metrics": [{"className": "MeanSquaredError"}]}]
    }"""
    helpers.train(
        helpers.write_module(tmp_path, PLAIN),
        examples,
        outputs,
        inputs={"schema": [helpers.write_schema(tmp_path / "schema")]},
        eval_config=eval_config,
    )
    report = json.loads(Path(outputs["model_run"][0].uri, "report.json").read_text())
    (rehearsal,) = [item for item in report["results"] if item["name"] == "eval_rehearsal"]
    assert rehearsal["status"] == "pass", rehearsal
    assert "mean_squared_error = 0" in rehearsal["message"]


def test_a_bug_in_the_signature_costs_no_training(
    examples: types.Artifact, outputs: Any, tmp_path: Path
) -> None:
    source = """
    def export_fn(fn_args):
        model = Doubler()
        tf.saved_model.save(model, fn_args.serving_model_dir, signatures={})

    def run_fn(fn_args):
        raise AssertionError("must not be called")
    """
    module_file = helpers.write_module(tmp_path, source)
    contract = ServingContract(rehearse=True).to_json()
    with pytest.raises(ModelValidationError, match=r"The untrained export failed .*\n.*signature"):
        helpers.train(module_file, examples, outputs, contract=contract)


def test_a_corrupt_file_is_named(outputs: Any, tmp_path: Path) -> None:
    examples = helpers.write_examples(tmp_path / "examples")
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
        helpers.train(
            helpers.write_module(tmp_path, source),
            examples,
            outputs,
            inputs={"schema": [helpers.write_schema(tmp_path / "schema")]},
        )
