"""Callbacks of a resumed fit see no batch twice, and write into the directory of the new run."""

from __future__ import annotations

import collections
import copy
import importlib
import json
import logging
import os
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from generic_trainer import training

PACKAGES = pytest.mark.parametrize("package", ["keras", "tf_keras"])


@pytest.fixture(autouse=True)
def _fast_keras_2() -> Iterator[None]:
    importlib.import_module("tf_keras")
    with training.keras_2_left_alone():  # as in a `run_fn`
        yield


class Ended(Exception):
    """Ends a fit as an error of the user's would."""


def recorder(package: str, end: int = 0) -> Any:
    """Returns a callback that records its calls and writes a file after each batch."""
    keras = importlib.import_module(package)

    class Recorder(keras.callbacks.Callback):
        def __init__(self, directory: str) -> None:
            super().__init__()
            self.directory, self.latest = directory, ""
            self.places, self.queue = {directory}, collections.deque([directory])
            self.calls: list[str] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.calls.append(f"epoch {epoch}")

        def on_test_begin(self, logs: Any = None) -> None:
            self.calls.append("test")

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.calls.append(f"batch {batch}")
            iterations = int(self.model.optimizer.iterations)
            self.latest = os.path.join(self.directory, f"{iterations}.json")
            Path(self.latest).write_text(json.dumps(len(self.calls)), encoding="utf-8")
            if iterations == end:
                raise Ended

    return Recorder


def fit(package: str, tmp_path: Path, run: str, end: int = 0) -> Any:
    """Trains for 3 epochs of 4 steps, and writes into a directory of the run."""
    keras = importlib.import_module(package)
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    directory = tmp_path / run
    directory.mkdir()
    callback = recorder(package, end)(str(directory))
    data = tf.data.Dataset.from_tensors((tf.ones([4, 1]), tf.ones([4, 1]))).repeat(4)
    resume = training.resume_callbacks(
        types.SimpleNamespace(checkpoint_dir=str(tmp_path / "checkpoints")),
        callbacks=[callback],
        every_steps=1,
    )
    model.fit(data, epochs=3, verbose=0, validation_data=data, callbacks=resume)
    return callback


@PACKAGES
def test_callbacks_are_not_called_in_a_replay_and_keep_the_paths_of_the_new_run(
    tmp_path: Path, package: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Ended), caplog.at_level(logging.WARNING):
        fit(package, tmp_path, "first", end=7)
    assert "start anew, because they hold paths: Recorder.latest" in caplog.text
    resumed = fit(package, tmp_path, "second")
    assert sorted(int(path.stem) for path in (tmp_path / "second").iterdir()) == [*range(7, 13)]
    assert resumed.directory == str(tmp_path / "second")
    assert {*resumed.places, *resumed.queue} == {resumed.directory}
    calls = [f"batch {batch}" for batch in range(4)]
    assert resumed.calls == [
        *("epoch 0", *calls, "test", "epoch 1", *calls, "test", "epoch 2", *calls, "test")
    ]
    finished = fit(package, tmp_path, "third")
    assert not list((tmp_path / "third").iterdir())
    assert finished.calls == resumed.calls


@PACKAGES
def test_a_copy_of_the_callbacks_starts_afresh(
    tmp_path: Path, package: str, caplog: pytest.LogCaptureFixture
) -> None:
    keras = importlib.import_module(package)
    fn_args = types.SimpleNamespace(checkpoint_dir=str(tmp_path))
    original = training.resume_callbacks(fn_args, callbacks=[recorder(package)(str(tmp_path))])
    data = tf.data.Dataset.from_tensors((tf.ones([4, 1]), tf.ones([4, 1])))
    for make in (copy.deepcopy, lambda each: [*map(copy.copy, each)]):
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("adam", "mse", run_eagerly=True)
        caplog.clear()
        model.fit(data, verbose=0, callbacks=make(original))
        assert int(model.optimizer.iterations) == 1
        assert "starts afresh and saves no checkpoints" in caplog.text
    assert not (tmp_path / "fit").exists()


@PACKAGES
def test_a_replay_whose_first_step_raises_leaves_keras_as_it_was(
    tmp_path: Path, package: str
) -> None:
    with pytest.raises(Ended):
        fit(package, tmp_path, "first", end=2)
    keras = importlib.import_module(package)
    on_batch_end = keras.callbacks.CallbackList.on_train_batch_end

    class Broken(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            raise RuntimeError("the user's own")

    model = Broken([keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    fn_args = types.SimpleNamespace(checkpoint_dir=str(tmp_path / "checkpoints"))
    resume = training.resume_callbacks(fn_args, callbacks=[recorder(package)(str(tmp_path))])
    with pytest.raises(RuntimeError, match="the user's own"):
        model.fit(tf.ones([4, 1]), tf.ones([4, 1]), verbose=0, callbacks=resume)
    assert keras.callbacks.CallbackList.on_train_batch_end is on_batch_end
    assert "evaluate" not in vars(model)
