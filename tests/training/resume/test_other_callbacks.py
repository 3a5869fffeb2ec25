"""Callbacks of a resumed fit see no batch twice, and write into the directory of the new run."""

import collections
import copy
import functools
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from generic_trainer import training
from generic_trainer._core.progress import ProgressReader
from generic_trainer.training.resume._callback_state import CallbackState
from tests.training.resume.fits import Ended, fn_args, ones, values


def recorder(keras: Any, end: int = 0) -> Any:
    """Returns a callback that records its calls and writes a file after each batch."""

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

        def on_train_end(self, logs: Any = None) -> None:
            self.model.set_weights([each / 2 for each in self.model.get_weights()])

    return Recorder


def fit(keras: Any, tmp_path: Path, run: str, end: int = 0) -> Any:
    """Trains for 3 epochs of 4 steps, and writes into a directory of the run."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    directory = tmp_path / run
    directory.mkdir()
    callback = recorder(keras, end)(str(directory))
    resume = training.resume_callbacks(fn_args(tmp_path / "checkpoints"), every_steps=1)
    calls, data = callback.calls, ones(4).filter(lambda x, y: True)  # of unknown length
    with training.watched(str(tmp_path)):
        fit = functools.partial(model.fit, data, epochs=3, verbose=0, validation_data=ones(4))
        fit(callbacks=[*resume, callback])
    assert callback.calls is calls  # `run_fn` may hold it too
    return callback


def test_callbacks_are_not_called_in_a_replay_and_keep_the_paths_of_the_new_run(
    tmp_path: Path, keras: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Ended), caplog.at_level(logging.WARNING):
        fit(keras, tmp_path, "first", end=7)
    assert "start anew, because they hold paths: Recorder.latest" in caplog.text
    resumed = fit(keras, tmp_path, "second")
    assert sorted(int(path.stem) for path in (tmp_path / "second").iterdir()) == [*range(7, 13)]
    assert ProgressReader(str(tmp_path)).look().step == 12
    assert resumed.directory == str(tmp_path / "second")
    assert {*resumed.places, *resumed.queue} == {resumed.directory}
    calls = [f"batch {batch}" for batch in range(4)]
    assert resumed.calls == [
        *("epoch 0", *calls, "test", "epoch 1", *calls, "test", "epoch 2", *calls, "test")
    ]
    finished = fit(keras, tmp_path, "third")
    assert not list((tmp_path / "third").iterdir())
    assert finished.calls == resumed.calls
    assert values(finished.model) == values(resumed.model)


def test_min_delta_keeps_its_sign_if_the_best_value_is_still_to_come(keras: Any) -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    arguments = {"min_delta": 1.0, "start_from_epoch": 2}
    first, second = (keras.callbacks.EarlyStopping("loss", **arguments) for _ in range(2))
    model.fit(ones(), verbose=0, callbacks=[first])
    second.set_model(model)
    CallbackState([second]).assign(CallbackState([first]).values(), "path")
    second.on_epoch_end(1, {"loss": 1.0})
    assert second.min_delta == first.min_delta == -1.0


def test_a_copy_of_the_callbacks_starts_afresh(
    tmp_path: Path, keras: Any, caplog: pytest.LogCaptureFixture
) -> None:
    record = recorder(keras)(str(tmp_path))
    original = training.resume_callbacks(fn_args(tmp_path), callbacks=[record])
    for make in (copy.deepcopy, lambda each: [*map(copy.copy, each)]):
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("adam", "mse", run_eagerly=True)
        caplog.clear()
        model.fit(ones(), verbose=0, callbacks=make(original))
        assert int(model.optimizer.iterations) == 1
        assert "starts afresh and saves no checkpoints" in caplog.text
    assert not (tmp_path / "fit").exists()


def test_a_replay_whose_first_step_raises_leaves_keras_as_it_was(
    tmp_path: Path, keras: Any
) -> None:
    with pytest.raises(Ended):
        fit(keras, tmp_path, "first", end=2)
    on_batch_end = keras.callbacks.CallbackList.on_train_batch_end

    class Broken(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            raise RuntimeError("the user's own")

    model = Broken([keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    record = recorder(keras)(str(tmp_path))
    resume = training.resume_callbacks(fn_args(tmp_path / "checkpoints"), callbacks=[record])
    with pytest.raises(RuntimeError, match="the user's own"):
        model.fit(ones(), verbose=0, callbacks=resume)
    assert keras.callbacks.CallbackList.on_train_batch_end is on_batch_end
    assert "evaluate" not in vars(model)
