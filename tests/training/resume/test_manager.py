"""Checkpoints are there whole or not at all."""

import errno
import fcntl
import importlib
import json
import logging
import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.errors import ConfigurationError, TrainingError
from generic_trainer.training import CheckpointManager
from generic_trainer.training.resume import _manager
from tests.processes import locked_elsewhere


def writes(text: str) -> Callable[[str], object]:
    return lambda directory: Path(directory, "state.txt").write_text(text, encoding="utf-8")


def latest_text(manager: CheckpointManager) -> str:
    saved: Any = manager.latest()
    return Path(saved.path, "state.txt").read_text(encoding="utf-8")


def test_the_latest_checkpoint_is_that_of_the_highest_step_that_was_saved_last(
    tmp_path: Path,
) -> None:
    with CheckpointManager(str(tmp_path)) as manager:
        assert manager.latest() is None
        first = manager.save(9, writes("nine"))
        saved = manager.save(np.int64(10), writes("ten"), {"epoch": np.int64(2)})
        os.utime(first.path, (4e9, 4e9))  # whatever the clock says
        assert manager.latest() == saved
        assert (saved.step, saved.metadata) == (10, {"epoch": 2})
        manager.save(10, writes("again"))
        assert latest_text(manager) == "again"
        manager.save(11, writes("eleven"))
        with pytest.raises(ConfigurationError, match=r"Step 10 .*later step.*Restore the latest"):
            manager.save(10, writes("late"))
    kept = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert kept == ["step-000000000010.1", "step-000000000011.0"]


def test_a_damaged_checkpoint_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with CheckpointManager(str(tmp_path)) as manager:
        manager.save(1, writes("one"))
        writes("TWO")(manager.save(2, writes("two")).path)
        with caplog.at_level(logging.WARNING):
            assert latest_text(manager) == "one"
        assert "was altered" in caplog.text
        # The run goes on from step 1, and what it saves comes after all that is left of step 2.
        manager.save(2, writes("two again"))
        assert latest_text(manager) == "two again"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"directory": ""}, "directory"), ({"max_to_keep": 0}, "max_to_keep: expected at least 1")],
)
def test_wrong_arguments(tmp_path: Path, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        CheckpointManager(**{"directory": str(tmp_path), **arguments})  # type: ignore[arg-type]


def test_an_error_while_writing_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(directory: str) -> None:
        writes("half")(directory)
        raise RuntimeError("the user's own")

    with CheckpointManager(str(tmp_path)) as manager:
        manager.save(1, writes("one"))
        with pytest.raises(RuntimeError, match="the user's own"):
            manager.save(2, fail)
        assert latest_text(manager) == "one"
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1


def test_a_full_disk_is_named_and_costs_nothing(tmp_path: Path) -> None:
    variable = tf.Variable(tf.zeros([100_000]))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with CheckpointManager(str(tmp_path)) as manager:
        manager.save_objects(1, {"variable": variable})
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        try:
            with pytest.raises(TrainingError, match=r"step 2 could not be written.*still there"):
                manager.save_objects(2, {"variable": variable})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, before)
        saved: Any = manager.latest()
        assert saved.step == 1


def test_a_directory_that_is_deleted_meanwhile_is_not_said_to_be_full(tmp_path: Path) -> None:
    def write(path: str) -> None:
        shutil.rmtree(tmp_path / "fit")
        writes("one")(path)

    told = pytest.raises(TrainingError, match="Somebody has deleted this directory")
    with CheckpointManager(str(tmp_path / "fit")) as manager, told:
        manager.save(1, write)


def test_a_thread_writes_while_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    sync = _manager._sync
    monkeypatch.setattr(_manager, "_sync", lambda path: (goes_on.wait(), sync(path)))
    with CheckpointManager(str(tmp_path)) as manager:
        manager.save_beside(1, writes("one"))
        assert manager.is_writing
        assert not list(tmp_path.glob("step-*"))
        goes_on.set()
        assert latest_text(manager) == "one"


@pytest.mark.parametrize(("owner", "name"), [(_manager, "_sync"), (CheckpointManager, "_names")])
def test_what_fails_beside_training_is_told_and_costs_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: Any,
    name: str,
) -> None:
    def full(path: Any) -> None:
        raise OSError(28, "No space left on device")

    with CheckpointManager(str(tmp_path)) as manager:
        manager.save(1, writes("one"))
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, full)
            manager.save_beside(2, writes("two"))
            with pytest.raises(TrainingError, match=r"step 2 could not be written.*No space left"):
                manager.wait()
            manager.save_beside(3, writes("three"))
            manager.close()
        assert "step 3 could not be written" in caplog.text
        assert latest_text(manager) == "one"
    assert not list(tmp_path.glob(".unfinished-*"))


def test_what_cannot_be_deleted_is_told_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def in_use(path: str) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    with CheckpointManager(str(tmp_path), max_to_keep=1) as manager:
        manager.save(1, writes("one"))
        with monkeypatch.context() as patch:
            patch.setattr(_manager, "delete_tree", in_use)
            manager.save(2, writes("two"))
        assert "were not deleted" in caplog.text
        assert latest_text(manager) == "two"
        manager.save(3, writes("three"))
    assert [each.name for each in tmp_path.glob("step-*")] == ["step-000000000003.0"]


def test_objects_come_back(tmp_path: Path) -> None:
    def objects() -> dict[str, Any]:
        return {
            "weights": tf.Variable([0.0, 0.0]),
            "iterator": iter(tf.data.Dataset.range(100).shuffle(100, seed=1)),
        }

    first = objects()
    with CheckpointManager(str(tmp_path / "as a pattern [0]")) as manager:
        assert manager.restore_objects(first) is None
        first["weights"].assign([1.0, 2.0])
        for _ in range(10):
            next(first["iterator"])
        manager.save_objects(10, first)
        second = objects()
        saved: Any = manager.restore_objects(second)
    assert saved.step == 10
    assert second["weights"].numpy().tolist() == [1.0, 2.0]
    rest = [[int(each) for each in one["iterator"]] for one in (first, second)]
    assert rest[0] == rest[1]


def test_layers_in_lists_come_back(tmp_path: Path) -> None:
    keras: Any = importlib.import_module("keras")

    class Blocks(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = [keras.layers.Dense(9), keras.layers.Dropout(0.5)]
            self.last = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.last(self.blocks[1](self.blocks[0](x)))

    first, second = Blocks(), Blocks()
    first(tf.ones([1, 1]), training=True)
    with CheckpointManager(str(tmp_path)) as manager:
        manager.save_objects(1, {"model": first})
        manager.restore_objects({"model": second})  # which has no variables yet
    outputs = [model(tf.ones([1, 1]), training=True).numpy().tolist() for model in (first, second)]
    assert outputs[0] == outputs[1]
    assert len(second.weights) == 4


def holders() -> dict[str, Callable[[Any, Any], dict[str, Any]]]:
    """Returns kinds of objects that have a model or layer of Keras 3."""

    class Agent(tf.Module):
        def __init__(self, net: Any) -> None:
            super().__init__()
            self.net, self.target = net, [net]

    def module(net: Any, optimizer: Any) -> dict[str, Any]:
        return {"agent": Agent(net)}

    def module_and_optimizer(net: Any, optimizer: Any) -> dict[str, Any]:
        return {"agent": Agent(net), "optimizer": optimizer}

    return {
        "itself": lambda net, optimizer: {"net": net},
        "dict": lambda net, optimizer: {"nets": {"a/b": net}, "optimizers": [optimizer]},
        "list": lambda net, optimizer: {"nets": [[net]]},
        "module": module,
        "module and optimizer": module_and_optimizer,
        "checkpoint": lambda net, optimizer: {"of": tf.train.Checkpoint(net=net)},
    }


@pytest.mark.parametrize("is_built", [True, False])
@pytest.mark.parametrize("holder", [*holders()])
@pytest.mark.parametrize("kind", ["Model", "Layer"])
def test_models_and_layers_come_back_wherever_they_are(
    tmp_path: Path, kind: str, holder: str, is_built: bool
) -> None:
    keras: Any = importlib.import_module("keras")
    x = tf.reshape(tf.range(24.0), [8, 3])

    class Net(getattr(keras, kind, keras.layers.Layer)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            normal, drop = keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)
            self.blocks = [keras.layers.Dense(9), normal, drop, keras.layers.Dense(2)]
            self.blocks[0].trainable = False  # so that no optimizer has it

        def call(self, x: Any, training: bool = False) -> Any:
            x = self.blocks[1](self.blocks[0](x), training=training)
            return self.blocks[3](self.blocks[2](x, training=training))

    def step(net: Any, optimizer: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(net(x, training=True) ** 2)
        weights = net.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss.numpy()

    (first, by), (second, and_by) = ((Net(), keras.optimizers.SGD(0.1)) for _ in range(2))
    step(first, by)
    if is_built:
        step(second, and_by)
    with CheckpointManager(str(tmp_path)) as manager:
        manager.save_objects(1, holders()[holder](first, by))
        manager.restore_objects(holders()[holder](second, and_by))
    assert [step(first, by) for _ in range(2)] == [step(second, and_by) for _ in range(2)]
    assert first(x).numpy().tolist() == second(x).numpy().tolist()


@pytest.mark.parametrize("holder", ["itself", "list", "dict", "module"])
def test_metrics_and_generators_of_keras_3_come_back_wherever_they_are(
    tmp_path: Path, holder: str
) -> None:
    keras: Any = importlib.import_module("keras")

    def objects() -> tuple[list[Any], dict[str, Any]]:
        parts = [keras.metrics.Mean(), keras.metrics.AUC(), keras.random.SeedGenerator(7)]
        if holder == "itself":
            return parts, dict(zip("abc", parts, strict=True))
        module: Any = tf.Module()
        module.parts = parts
        held = {"list": [parts], "dict": dict(zip("abc", parts, strict=True)), "module": module}
        return parts, {"held": held[holder]}

    def drawn(parts: list[Any]) -> list[object]:
        mean, area, generator = parts
        return [float(mean.result()), float(area.result()), generator.next().numpy().tolist()]

    (first, saved), (second, restored) = objects(), objects()
    first[0].update_state([1.0, 2.0])
    first[1].update_state([0, 1, 1, 0], [0.1, 0.3, 0.8, 0.6])
    first[2].next()
    with CheckpointManager(str(tmp_path)) as manager:
        manager.save_objects(1, saved)
        manager.restore_objects(restored)
    assert drawn(second) == drawn(first)


def test_a_metric_without_variables_is_not_restored_in_silence(tmp_path: Path) -> None:
    keras: Any = importlib.import_module("keras")
    first, second = keras.metrics.F1Score(), keras.metrics.F1Score()
    first.update_state([[1.0, 0.0]], [[0.9, 0.2]])
    with CheckpointManager(str(tmp_path)) as manager:
        manager.save_objects(1, {"metric": first})
        with pytest.raises(TrainingError, match="'metric' makes its variables only when"):
            manager.restore_objects({"metric": second})
        second.update_state([[0.0, 1.0]], [[0.9, 0.2]])
        manager.restore_objects({"metric": second})
    assert second.result().numpy().tolist() == first.result().numpy().tolist()


def test_checkpoints_of_earlier_versions_are_restored_without_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keras: Any = importlib.import_module("keras")
    module: Any = tf.Module()
    module.parts, module.weight = [keras.metrics.Mean()], tf.Variable(2.0)
    with CheckpointManager(str(tmp_path)) as manager:
        with monkeypatch.context() as patch:
            patch.setattr(_manager, "parts_beside_layers", lambda holder: ())
            manager.save_objects(1, {"module": module})
        module.weight.assign(0.0)
        manager.restore_objects({"module": module})
    assert module.weight.numpy() == 2.0
    assert "does not have 'module.parts.000000', which starts anew" in caplog.text


@pytest.mark.parametrize("part", [3, "main", len])
def test_what_tensorflow_cannot_save_is_named(tmp_path: Path, part: object) -> None:
    with CheckpointManager(str(tmp_path)) as manager:
        with pytest.raises(ConfigurationError, match="TensorFlow cannot save 'part'"):
            manager.save_objects(1, {"part": part})
        assert manager.latest() is None


def models_in_parts() -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """Returns models that Keras 3 cannot build as a whole: functions that make and call them."""
    keras: Any = importlib.import_module("keras")

    class Scaled(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.scale = self.add_weight(shape=shape[-1:], initializer="random_normal")

        def call(self, x: Any) -> Any:
            return x * self.scale

    class TwoArguments(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = keras.Sequential([keras.layers.Dense(3), keras.layers.Dropout(0.5)])
            self.others = [Scaled(), keras.layers.Dense(1)]

        def call(self, x: Any, y: Any) -> Any:
            return self.others[1](self.others[0](self.first(x, training=True) + self.first(y)))

    class NoCall(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.parts = {"a": keras.layers.Dense(3), "b": keras.Sequential([Scaled()])}
            self.step = None

        def train(self, x: Any) -> Any:
            return self.parts["b"](self.parts["a"](x))

    x = tf.ones([2, 2])
    return {
        "two arguments": (TwoArguments, lambda model: model(x, x)),
        "no call": (NoCall, lambda model: model.train(x)),
    }


@pytest.mark.parametrize("name", [*models_in_parts()])
def test_models_that_are_built_layer_by_layer_come_back(tmp_path: Path, name: str) -> None:
    make, call = models_in_parts()[name]
    first, second = make(), make()
    call(first)
    with CheckpointManager(str(tmp_path)) as manager:
        manager.save_objects(1, {"model": first})
        manager.restore_objects({"model": second})
    assert call(second).numpy().tolist() == call(first).numpy().tolist()


def test_a_layer_that_cannot_be_built_is_refused(tmp_path: Path) -> None:
    keras: Any = importlib.import_module("keras")

    class Hidden(keras.layers.Dense):  # type: ignore[misc]
        def get_build_config(self) -> None:
            return None

    class Model(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = Hidden(1)

        def call(self, x: Any, y: Any) -> Any:
            return self.layer(x + y)

    first, second, x = Model(), Model(), tf.ones([2, 2])
    first(x, x)
    with CheckpointManager(str(tmp_path)) as manager:
        manager.save_objects(1, {"model": first})
        with pytest.raises(TrainingError, match=r"has not made layer\..*call it on a batch before"):
            manager.restore_objects({"model": second})
        second(x, x)
        manager.restore_objects({"model": second})
    assert second(x, x).numpy().tolist() == first(x, x).numpy().tolist()


def test_the_first_loss_of_keras_3_is_scaled_as_the_last_one(tmp_path: Path) -> None:
    by: Any = importlib.import_module("keras").optimizers
    first, second = (by.LossScaleOptimizer(by.SGD(), 8.0, dynamic_growth_steps=1) for _ in range(2))
    first.apply([tf.constant(1.0)], [tf.Variable(1.0)])
    with CheckpointManager(str(tmp_path)) as manager:
        manager.save_objects(1, {"optimizer": first})
        manager.restore_objects({"optimizer": second})
    assert second.scale_loss(1.0) == first.scale_loss(1.0) == 16.0


def test_objects_of_another_shape_are_refused(tmp_path: Path) -> None:
    with CheckpointManager(str(tmp_path)) as manager:
        manager.save_objects(1, {"weights": tf.Variable([0.0, 0.0])})
        with pytest.raises(TrainingError, match=r"does not fit the model .*start afresh"):
            manager.restore_objects({"weights": tf.Variable([0.0])})


def test_a_worker_that_is_not_the_chief_takes_part_and_writes_nothing(tmp_path: Path) -> None:
    called: list[str] = []
    worker = CheckpointManager(str(tmp_path), writes=False)
    with CheckpointManager(str(tmp_path)) as chief:
        chief.save(1, writes("chief"))
        worker.save(2, called.append)
        worker.save_beside(3, called.append)
        assert len(called) == 1
        assert not Path(called[0]).exists()
        assert latest_text(worker) == "chief"


def test_a_second_manager_is_refused_and_told_who_has_the_first(tmp_path: Path) -> None:
    with (
        CheckpointManager(str(tmp_path)),
        pytest.raises(ConfigurationError, match=f"Another run writes.*process {os.getpid()} on"),
    ):
        CheckpointManager(str(tmp_path))


def test_what_another_process_has_is_refused_and_what_a_killed_one_left_is_cleaned_up(
    tmp_path: Path,
) -> None:
    CheckpointManager(str(tmp_path)).close()
    (tmp_path / ".unfinished-step-000000000007.0").mkdir()
    with locked_elsewhere(tmp_path / ".lock"), pytest.raises(ConfigurationError):
        CheckpointManager(str(tmp_path))
    with CheckpointManager(str(tmp_path)):
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_lock(*args: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_lock)
    with CheckpointManager(str(tmp_path)) as manager:
        manager.save(1, writes("one"))
        assert latest_text(manager) == "one"


def test_a_remote_directory_needs_no_rename_and_no_lock(tmp_path: Path) -> None:
    root = "ram://checkpoints/" + tmp_path.name
    manager = CheckpointManager(root)
    manager.save_objects(1, {"weights": tf.Variable([1.0])})
    saved = manager.save_objects(2, {"weights": tf.Variable([2.0])})
    manifest = json.loads(tf.io.gfile.GFile(saved.path + "/manifest").readline())
    assert manifest["step"] == 2
    tf.io.gfile.remove(saved.path + "/manifest")  # as if killed before it was there
    weights = tf.Variable([0.0])
    restored: Any = manager.restore_objects({"weights": weights})
    assert (restored.step, weights.numpy().tolist()) == (1, [1.0])
