"""Each penguin module file trains, and its model is as good and as servable as the first one."""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tfx import types

from generic_trainer import Distribution
from pipelines._summary import predict
from tests.house import run_python
from tests.module_files.training import Inputs, train_module
from tests.pipelines.penguin_run import PenguinRun


def eval_penguins(run: PenguinRun) -> list[tf.train.Example]:
    files = [str(path) for path in Path(run.results.uri("examples"), "Split-eval").iterdir()]
    records = tf.data.TFRecordDataset(files, compression_type="GZIP")
    return [tf.train.Example.FromString(record.numpy()) for record in records]


def assert_knows_penguins(model_dir: Path, run: PenguinRun) -> None:
    penguins = eval_penguins(run)
    labels = [penguin.features.feature["species"].bytes_list.value[0] for penguin in penguins]

    species = predict(str(model_dir), penguins)["species"].numpy()

    assert np.mean(species == labels) > 0.9


pytestmark = pytest.mark.slow  # the first of them waits for the penguin pipeline


@pytest.fixture(scope="module")
def trained(
    penguin_run: PenguinRun, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], types.Artifact]:
    """Trains a module, once, and returns its Model artifact."""

    @functools.cache
    def train(module: str) -> types.Artifact:
        return train_module(module, Inputs.of(penguin_run.results), tmp_path_factory.mktemp(module))

    return train


@pytest.mark.parametrize(
    "module",
    ["penguin_custom_loop", "penguin_keras3", "penguin_trainer_fn", "penguin_warm_start"],
)
def test_module_trains_a_model_that_serves(
    module: str, trained: Callable[[str], types.Artifact], penguin_run: PenguinRun
) -> None:
    assert_knows_penguins(Path(trained(module).uri, "Format-Serving"), penguin_run)


def test_the_custom_loop_reports_its_metrics(trained: Callable[[str], types.Artifact]) -> None:
    model = trained("penguin_custom_loop")

    assert model.get_float_custom_property("train/loss") < 0.2
    assert model.get_float_custom_property("validation/accuracy") > 0.9


def test_a_warm_start_begins_where_the_base_model_ended(
    penguin_run: PenguinRun, tmp_path: Path
) -> None:
    inputs = Inputs.of(penguin_run.results)
    base_model = penguin_run.results.uri("model")

    train_module("penguin_warm_start", inputs, tmp_path, base_model)

    assert f"Starting from {base_model}/Format-Serving" in log_of(tmp_path)
    assert first_epoch_loss(log_of(tmp_path)) < 0.1


def test_a_base_model_of_another_shape_is_not_used(
    trained: Callable[[str], types.Artifact], penguin_run: PenguinRun, tmp_path: Path
) -> None:
    base_model = trained("penguin_keras3").uri

    train_module("penguin_warm_start", Inputs.of(penguin_run.results), tmp_path, base_model)

    assert "Expected weights of shapes [(9, 16)" in log_of(tmp_path)
    assert "Starting from scratch." in log_of(tmp_path)


def test_mirroring_over_two_devices_leaves_no_trace_in_the_model(
    penguin_run: PenguinRun, tmp_path: Path
) -> None:
    inputs = Inputs.of(penguin_run.results)
    arguments = (inputs.examples, inputs.transform_graph, inputs.schema, tmp_path)
    child = run_python("-m", "tests.module_files.train_mirrored", *arguments)

    assert "Training on 2 replicas." in child.stdout
    model_dir = tmp_path / "model" / "1" / "Format-Serving"
    assert_knows_penguins(model_dir, penguin_run)
    saved_model = saved_model_pb2.SavedModel.FromString((model_dir / "saved_model.pb").read_bytes())
    functions = saved_model.meta_graphs[0].graph_def.library.function
    nodes = [node for function in functions for node in function.node_def]
    assert nodes
    assert not [node for node in nodes if "Collective" in node.op or "CPU:1" in node.device]


@pytest.mark.parametrize("legacy", ["0", "1"], ids=["Keras 3", "Keras 2"])
def test_two_workers_train_a_model_that_serves(
    legacy: str, penguin_run: PenguinRun, tmp_path: Path
) -> None:
    env = {"TF_USE_LEGACY_KERAS": legacy}
    two = Distribution(launcher="local", num_workers=2, max_failures=0, env=env)
    inputs = Inputs.of(penguin_run.results)
    model = train_module("penguin_multi_worker", inputs, tmp_path, distribution=two)
    for worker in (0, 1):
        assert f"[worker {worker}] Training on 2 replicas." in log_of(tmp_path)
    assert f"tf.keras is Keras {3 - int(legacy)}." in log_of(tmp_path)
    assert "start anew" not in log_of(tmp_path)
    assert_knows_penguins(Path(model.uri, "Format-Serving"), penguin_run)


def log_of(folder: Path) -> str:
    return "".join(path.read_text() for path in (folder / "model_run").rglob("*.log"))


def first_epoch_loss(log: str) -> float:
    _, losses = log.split("Epoch 2/", 1)[0].rsplit(" loss: ", 1)
    return float(losses.split()[0])
