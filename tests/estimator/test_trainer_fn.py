"""Module files of TFX's first trainer, through the executor to a published model."""

import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tfx import types

from generic_trainer.errors import ExportError, ModuleFileError, TrainingError
from generic_trainer.estimator import tf
from generic_trainer.estimator._trainer_fn import TRAINER_FN
from generic_trainer.executors import GenericTrainerExecutor
from tests import helpers
from tests.trials.conftest import make_fn_args

# Learns y = 2 x, and prints what trainer_fn was given.
MODULE = """
from generic_trainer.estimator import tf

FEATURES = {name: tf.io.FixedLenFeature([1], tf.float32) for name in ("x", "y")}

def read(files):
    def parse(records):
        features = tf.io.parse_example(records, FEATURES)
        return features, features.pop("y")
    files = tf.data.Dataset.list_files(files)
    return tf.data.TFRecordDataset(files, "GZIP").batch(8).map(parse).repeat()

def model_fn(features, labels, mode):
    weight = tf.compat.v1.get_variable("weight", [], initializer=tf.zeros_initializer())
    y = features["x"] * weight
    if mode == "infer":
        return tf.estimator.EstimatorSpec(mode, {"y": y})
    loss = tf.reduce_mean(tf.square(y - labels)) / 100
    train_op = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(
        loss, tf.compat.v1.train.get_global_step()
    )
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

def receive():
    return tf.estimator.export.build_parsing_serving_input_receiver_fn({"x": FEATURES["x"]})()

EXPORTERS = [tf.estimator.FinalExporter("line", receive)]

def trainer_fn(trainer_fn_args, schema):
    print("features:", schema and [feature.name for feature in schema.feature])
    print("base model:", trainer_fn_args.warm_start_from)
    config = tf.estimator.RunConfig(model_dir=trainer_fn_args.serving_model_dir)
    return {
        "estimator": tf.estimator.Estimator(
            model_fn, config=config, warm_start_from=trainer_fn_args.base_model
        ),
        "train_spec": tf.estimator.TrainSpec(
            lambda: read(trainer_fn_args.train_files), max_steps=trainer_fn_args.train_steps
        ),
        "eval_spec": tf.estimator.EvalSpec(
            lambda: read(trainer_fn_args.eval_files), steps=1, exporters=EXPORTERS
        ),
        "eval_input_receiver_fn": lambda: None,
    }
"""


def run(
    folder: Path,
    more_source: str = "",
    inputs: dict[str, list[types.Artifact]] | None = None,
    steps: int = 50,
    **properties: Any,
) -> dict[str, list[types.Artifact]]:
    """Trains the module with `more_source` at its end; returns the output artifacts."""
    folder.mkdir(exist_ok=True)
    module_file = folder / "line.py"
    module_file.write_text(MODULE + textwrap.dedent(more_source))
    outputs = helpers.output_artifacts(folder)
    examples = helpers.write_examples(folder / "examples")
    properties["train_args"] = f'{{"num_steps": {steps}}}'
    helpers.train(str(module_file), examples, outputs, inputs, **properties)
    return outputs


def weight_of(outputs: dict[str, list[types.Artifact]]) -> float:
    """Returns the y that the published model gives for x = 1."""
    (weight,) = helpers.scores_of(helpers.published_model(outputs), 1.0)
    return weight


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[types.Artifact]]:
    folder = tmp_path_factory.mktemp("trained")
    schema = helpers.write_schema(folder / "schema")
    return run(folder / "run", inputs={"schema": [schema]})


def test_what_the_exporter_wrote_is_published_and_the_rest_stays_in_the_model_run(
    trained: dict[str, list[types.Artifact]],
) -> None:
    assert weight_of(trained) == pytest.approx(2.0, abs=0.01)
    model = trained["model"][0]
    assert not Path(model.uri, "Format-TFMA").exists()
    assert model.get_float_custom_property("Format-Serving/eval/loss") < 0.01
    working_dir = Path(trained["model_run"][0].uri, "Format-Serving")
    assert tf.train.latest_checkpoint(str(working_dir)).endswith("-50")
    assert list(working_dir.glob("events.out.tfevents.*"))
    assert list(working_dir.glob("export/line/*/saved_model.pb"))
    log = helpers.kept_log(trained)
    assert "features: ['x', 'y']" in log
    assert "base model: None" in log


def test_trainer_fn_args_are_like_hparams(tmp_path: Path) -> None:
    source = """
        def trainer_fn(hparams, schema):
            print("units:", hparams.units, hparams["units"], hparams.get("units", 0))
            print("depth:", hparams.get("depth", 3), "depth" in hparams, "units" in hparams)
            print("steps:", hparams.train_steps, hparams.get("custom_config"))
            print("own:", hparams.num_examples, hparams.warm_start_from)
    """
    config = {"units": 16, "train_steps": 7, "num_examples": 9, "warm_start_from": "/ckpt"}
    with pytest.raises(ModuleFileError, match="found None"):
        run(tmp_path, source, custom_config=config)
    log = (tmp_path / "model_run" / "1.failed" / "training.log").read_text()
    assert "units: 16 16 16" in log
    assert "depth: 3 False True" in log
    assert f"steps: 50 {config}" in log
    assert "own: 9 /ckpt" in log


def test_warm_start_from_a_published_model(
    trained: dict[str, list[types.Artifact]], tmp_path: Path
) -> None:
    base_model = helpers.artifact_at("Model", trained["model"][0].uri)
    warm = run(tmp_path, inputs={"base_model": [base_model]}, steps=1)
    assert weight_of(warm) == pytest.approx(2.0, abs=0.01)
    log = helpers.kept_log(warm)
    assert f"base model: {helpers.published_model(trained)}" in log
    assert "features: None" in log


@pytest.mark.parametrize(
    ("more_source", "found"),
    [
        (
            "EXPORTERS.append(tf.estimator.LatestExporter('latest', receive))",
            "found ['line', 'latest']",
        ),
        ("EXPORTERS.clear()", "found []"),
        ("def trainer_fn(args, schema): return 3", "expected a dict with estimator, train_spec, e"),
        (
            "def trainer_fn(args, schema): return {'estimator': tf}",
            'expected a TrainSpec at ["train_spec"], found None',
        ),
    ],
    ids=["two exporters", "no exporter", "no dict", "not all of it"],
)
def test_what_cannot_be_published_is_not_trained(
    tmp_path: Path, more_source: str, found: str
) -> None:
    with pytest.raises(ModuleFileError, match="trainer_fn returned the wrong thing") as error:
        run(tmp_path, more_source)
    assert found in str(error.value)


def test_an_exporter_that_exports_nothing(tmp_path: Path) -> None:
    class_source = """
        class Nothing(tf.estimator.FinalExporter):
            def export(self, *args, **options):
                return None

        EXPORTERS[:] = [Nothing("nothing", receive)]
    """
    with pytest.raises(ExportError, match="exporter 'nothing' has written no model"):
        run(tmp_path, class_source, steps=1)


def test_a_training_that_ends_with_its_data_is_exported(tmp_path: Path) -> None:
    source = """
        def trainer_fn(trainer_fn_args, schema, endless=trainer_fn):
            spec = endless(trainer_fn_args, schema)
            once = lambda: read(trainer_fn_args.train_files).take(50)
            return {**spec, "train_spec": tf.estimator.TrainSpec(once)}
    """
    assert weight_of(run(tmp_path, source)) == pytest.approx(2.0, abs=0.01)


def test_a_worker_that_is_lost_before_its_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("line")
    exec(MODULE, vars(module))
    examples = helpers.write_examples(tmp_path / "examples").uri
    files = {f"{split}_files": f"{examples}/Split-{split}/*" for split in ("train", "eval")}
    fn_args = make_fn_args(
        tmp_path, custom_config=None, base_model=None, train_steps=50, eval_model_dir="", **files
    )
    run_fn: Any = TRAINER_FN.run_fn(module, "run_fn")
    with monkeypatch.context() as lost, pytest.raises(SystemExit):
        lost.setattr(tf.estimator.FinalExporter, "export", lambda *args, **named: sys.exit())
        run_fn(fn_args)
    run_fn(fn_args)
    assert helpers.scores_of(fn_args.serving_model_dir, 1.0) == pytest.approx([2.0], abs=0.01)


def test_an_error_in_the_model_fn_quotes_its_line(tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as error:
        run(tmp_path, "def model_fn(features, labels, mode):\n    return features['z']\n")
    assert f'File "{tmp_path}/line.py", line' in str(error.value)
    assert "return features['z']" in str(error.value)
    assert str(error.value).startswith("trainer_fn of module 'line' failed.")


def test_run_fn_comes_before_trainer_fn(tmp_path: Path) -> None:
    source = """
        def run_fn(fn_args):
            import tensorflow_model_analysis as tfma
            if fn_args:
                tfma.export.export_eval_savedmodel()
    """
    with pytest.raises(TrainingError, match="take run_fn away") as error:
        run(tmp_path, source)
    assert "no EvalSavedModels any more" in str(error.value)


def test_trainer_fn_by_its_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "lines"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "line.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    outputs = helpers.output_artifacts(tmp_path)
    properties: dict[str, Any] = {"run_fn": "lines.line.trainer_fn"}
    properties["train_args"] = '{"num_steps": 1}'

    GenericTrainerExecutor().Do(
        {"examples": [helpers.write_examples(tmp_path / "examples")]},
        outputs,
        helpers.exec_properties(**properties),
    )

    assert weight_of(outputs) > 0
    monkeypatch.delitem(sys.modules, "lines.line", raising=False)
