"""A run of the executor, from the dictionaries to the published model."""

import copy
import hashlib
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tfx import types
from tfx.components.util import model_utils
from tfx.proto.orchestration import pipeline_pb2
from tfx.utils import import_utils, name_utils

from generic_trainer.errors import ModelValidationError
from generic_trainer.executors import GenericTrainerExecutor
from tests import helpers
from tests.executors.conftest import FITS, PLAIN, Node
from tests.processes import tf_config

# Exports twice, and leaves scalars as trainers of TensorFlow 2 and of TensorFlow 1 do.
REPORTS = helpers.run_fn("""
    with tf.summary.create_file_writer(fn_args.model_run_dir + "/train").as_default():
        for step, loss in ((5, 3.0), (0, 2.0), (1, 1.0)):  # a second fit counts from 0 again
            tf.summary.scalar("loss", loss, step=step)
        tf.summary.scalar("broken", float("nan"), step=0)
        tf.summary.histogram("weights", [1.0, 2.0], step=0)
    with tf.compat.v1.Graph().as_default():
        with tf.compat.v1.summary.FileWriter(fn_args.model_run_dir) as writer:
            for tag in ("steps_per_s", "validation", "name"):  # the others are properties, too
                value = tf.compat.v1.Summary.Value(tag=tag, simple_value=8.0)
                writer.add_summary(tf.compat.v1.Summary(value=[value]), 1)
    export(fn_args.eval_model_dir)
    print("the number of the run is", fn_args.serving_model_dir.split("/")[-2])
    tf.io.gfile.rmtree(fn_args.checkpoint_dir)  # as another run of the same key at its end
""")


def serving_default(model: Path) -> Any:
    return tf.saved_model.load(str(model)).signatures["serving_default"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, examples: types.Artifact) -> Node:
    """A successful run, where an earlier attempt has left files."""
    node = Node(tmp_path_factory.mktemp("finished"), examples)
    for leftover in (".staging/1/Format-Serving/half", "Format-Serving/old"):
        (node.path("model") / leftover).mkdir(parents=True)
    loggers = [logging.getLogger(name) for name in ("", "absl", "tensorflow")]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]
    node.run(REPORTS)
    assert [(logger.level, list(logger.handlers)) for logger in loggers] == before
    return node


def test_publishes_what_run_fn_exports_and_nothing_else(finished: Node) -> None:
    examples = tf.constant([helpers.example(3.0), helpers.example(5.0)])
    outputs = serving_default(finished.published)(examples=examples)["outputs"]
    assert outputs.numpy().tolist() == [[6.0], [10.0]]
    assert finished.names("model") == ["Format-Serving", "Format-TFMA"]
    assert not {"half", "old"} & set(os.listdir(finished.published))
    assert "the number of the run is 1\n" in helpers.kept_log(finished.outputs)


def test_describes_and_blesses_the_model(finished: Node) -> None:
    assert model_utils.is_infra_validated(finished.outputs["infra_blessing"][0])
    assert finished.model.get_string_custom_property("validation") == "passed"
    assert finished.model.get_float_custom_property("size_bytes") > 1000
    manifest = (finished.published / "manifest.json").read_bytes()
    digest = hashlib.sha256(manifest).hexdigest()
    assert finished.model.get_string_custom_property("manifest_sha256") == digest
    assert "saved_model.pb" in json.loads(manifest)["files"]
    assert json.loads(manifest)["inputs"].keys() >= {"code", "train_files"}
    assert finished.report()["passed"]
    assert (finished.path("model_run") / "report.html").read_text().startswith("<!doctype html")


def test_scalars_become_properties_of_the_model(finished: Node) -> None:
    assert finished.model.get_float_custom_property("train/loss") == 1.0
    assert finished.model.get_float_custom_property("steps_per_s") == 8.0
    assert finished.model.get_string_custom_property("train/broken") == "nan"
    assert not finished.model.has_custom_property("train/weights")
    assert finished.model.name == ""  # as a string: TFX keeps a field there


@pytest.mark.parametrize("is_killed", [False, True])
def test_an_earlier_run_of_this_number_leaves_nothing_to_the_model(
    node: Node, is_killed: bool
) -> None:
    """Without its metadata, TFX counts from 1 again."""
    log = "with tf.summary.create_file_writer(fn_args.model_run_dir).as_default():\n    "
    old = f"{log}tf.summary.scalar('old', 1.0, step=1)"
    if is_killed:
        with pytest.raises(KeyboardInterrupt):
            node.run(helpers.run_fn(f"{old}\nraise KeyboardInterrupt"))
    else:
        node.run(helpers.run_fn(old))
        assert node.model.has_custom_property("old")
    node.new_outputs()
    node.run(helpers.run_fn(f"{log}tf.summary.scalar('new', 1.0, step=1)"))
    assert node.model.has_custom_property("new")
    assert not node.model.has_custom_property("old")
    earlier = node.path("model_run").with_name("1.earlier")
    assert (earlier / "report.html").is_file() or is_killed
    assert list(earlier.glob("events*"))


def test_the_measured_goodput_becomes_a_property_of_the_model(finished: Node, node: Node) -> None:
    node.run(helpers.run_fn(FITS))
    facts = node.report()["facts"]
    assert node.model.get_float_custom_property("goodput") == facts["goodput"]
    assert 0 < facts["goodput"] == facts["time_shares"]["productive_training"] < 1
    assert not finished.model.has_custom_property("goodput")  # it has no steps to count


def test_a_run_fn_may_change_the_directory_although_paths_are_relative(
    tmp_path: Path, examples: types.Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the artifacts, of what it reads and writes, and of what follows it."""
    work = tmp_path / "work [1]"  # which as a pattern would match "work 1"
    work.mkdir()
    monkeypatch.chdir(work)
    shutil.copytree(examples.uri, "examples")
    relative = copy.deepcopy(examples)
    relative.uri = "examples"
    node = Node(Path(), relative)
    source = helpers.run_fn("""
        elsewhere = fn_args.custom_config["elsewhere"]
        os.chdir(elsewhere)
        assert tf.io.gfile.glob(fn_args.train_files)
        tf.io.gfile.makedirs(fn_args.checkpoint_dir)
        with tf.summary.create_file_writer(fn_args.model_run_dir).as_default():
            tf.summary.scalar("loss", 3.0, step=1)
    """)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    node.run(source, inputs=node.schema(), custom_config={"elsewhere": str(elsewhere)})
    assert Path.cwd() == work
    assert not [*elsewhere.iterdir()]
    assert serving_default(node.published)
    assert node.names("infra_blessing") == ["INFRA_BLESSED"]
    assert {"report.html", "training.log"} <= {*node.names("model_run")}
    assert node.model.get_float_custom_property("loss") == 3.0


def test_what_is_published_has_files_of_its_own(node: Node) -> None:
    source = """
    import os

    def run_fn(fn_args):
        blobs = fn_args.custom_config["blobs"]
        export(blobs)
        os.symlink(blobs, fn_args.serving_model_dir)
    """
    del node.outputs["infra_blessing"]  # a pipeline may leave it out
    blobs = node.root / "blobs"
    node.run(source, custom_config={"blobs": str(blobs)})
    shutil.rmtree(blobs)
    assert serving_default(node.published)


@pytest.mark.parametrize("downstream", [["Pusher"], ["Pusher", "Evaluator.final"]])
def test_who_comes_next_decides_what_a_model_may_be(downstream: list[str], node: Node) -> None:
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
    if downstream == ["Pusher"]:
        node.run(source, context=context)
        assert node.published.exists()
    else:
        with pytest.raises(ModelValidationError, match="batch_dimension"):
            node.run(source, context=context)


@pytest.mark.parametrize("times", [(1700000000,), (1700000000, 1700000001)])
def test_the_only_export_of_an_estimator_is_published(times: tuple[int, ...], node: Node) -> None:
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
    """.replace("TIMES", repr(times))
    if len(times) > 1:
        with pytest.raises(ModelValidationError, match="presence"):
            node.run(source)
        return
    node.run(source)
    assert serving_default(node.published)
    assert "export" not in os.listdir(node.published)
    assert (node.path("model_run") / "estimator" / "checkpoint").exists()
    assert node.model.get_float_custom_property("estimator/loss") == 0.5


def test_publishes_to_a_remote_file_system(node: Node) -> None:
    # A scheme makes a path remote: no `os` function takes it, only TensorFlow's file systems do.
    node.new_outputs(below=f"file://{node.root}/outputs")
    node.run(helpers.run_fn('print("far away")'))
    assert tf.io.gfile.exists(helpers.published_model(node.outputs) + "/saved_model.pb")
    assert not tf.io.gfile.exists(node.model.uri + "/.staging")
    with tf.io.gfile.GFile(node.outputs["model_run"][0].uri + "/training.log") as log:
        assert "far away" in log.read()


def test_run_fn_by_import_path(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    helpers.write_module(node.root / "my_models", PLAIN, name="doubler.py")
    (node.root / "my_models" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(node.root))
    properties = helpers.exec_properties(run_fn="my_models.doubler.run_fn")
    GenericTrainerExecutor().Do({"examples": [node.examples]}, node.outputs, properties)
    assert node.published.exists()


def test_import_path_is_public() -> None:
    path = name_utils.get_full_name(GenericTrainerExecutor)
    assert path == "generic_trainer.executors.GenericTrainerExecutor"
    assert import_utils.import_class_by_path(path) is GenericTrainerExecutor


def test_output_is_kept_and_shown_at_its_level(
    node: Node, capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
    import absl.logging
    print("printed")
    tf.print("printed by a graph")
    os.system("echo printed by a child process")
    logging.info("logged as info")
    absl.logging.info("logged through absl")
    tf.get_logger().info("logged through tensorflow")
    logging.warning("logged as warning")
    """
    node.run(helpers.run_fn(body))
    shown = capfd.readouterr()
    log = helpers.kept_log(node.outputs)
    printed = ("printed\n", "printed by a child process\n")
    logged = ("logged as info", "logged through absl", "logged through tensorflow")
    for text in printed:
        assert f"\n{text}" in f"\n{shown.out}"
    for text in logged:
        assert text in shown.out and text not in shown.err
    assert "logged as warning" in shown.err
    assert "logged as warning" not in shown.out
    for text in (*printed, *logged, "by a graph", "logged as warning"):
        assert log.count(text) == 1, log


@pytest.mark.parametrize(
    ("config", "publishes"),
    [
        (tf_config(chief=1, worker=1), False),
        (tf_config(worker=2), True),
        (tf_config(index=1, worker=2), False),
    ],
)
def test_only_the_chief_publishes(
    config: str, publishes: bool, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", config)
    node.run(helpers.run_fn("print('exports to', fn_args.serving_model_dir)"))
    assert node.names("model") == (["Format-Serving"] if publishes else [])
    assert (f"exports to {node.model.uri}" in helpers.kept_log(node.outputs)) == publishes


@pytest.mark.slow
def test_the_evaluator_is_rehearsed(node: Node) -> None:
    eval_config = """{
      "modelSpecs": [{"labelKey": "y"}],
      "slicingSpecs": [{}],
      "metricsSpecs": [{"metrics": [{"className": "MeanSquaredError"}]}]
    }"""
    node.run(inputs=node.schema(), eval_config=eval_config)
    (rehearsal,) = [x for x in node.report()["results"] if x["name"] == "eval_rehearsal"]
    assert rehearsal["status"] == "pass", rehearsal
    assert "mean_squared_error = 0" in rehearsal["message"]
