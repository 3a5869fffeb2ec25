"""Checkpoints that an earlier release wrote are resumed from.

Below `data` is what the code of commit e238124 wrote: fits of 4 epochs of 6 batches, saved after
step 15, in the middle of epoch 3, and then killed. `expected.json` holds what unbroken ones gave.
"""

from __future__ import annotations

import importlib
import json
import logging
import shutil
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer import training

DATA = Path(__file__).with_name("data")


def copied(name: str, tmp_path: Path) -> tuple[str, Any]:
    """Returns a directory of checkpoints that may be written into, and what to expect of it."""
    directory = shutil.copytree(DATA / name, tmp_path / name)
    expected = json.loads(directory.joinpath("expected.json").read_text(encoding="utf-8"))
    return str(directory), expected


def dataset() -> tf.data.Dataset:
    x = tf.reshape(tf.range(12, dtype=tf.float32), [12, 1]) / 12
    return tf.data.Dataset.from_tensor_slices((x, 2 * x)).shuffle(12, seed=3).repeat().batch(2)


def model_of(keras: Any) -> Any:
    layer = keras.layers.Dense(1, kernel_initializer="zeros")  # it was saved with other values
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile("adam", "mse", metrics=["mae"])
    return model


@pytest.mark.parametrize(("saved", "package"), [("keras3", "keras"), ("keras2", "tf_keras")])
def test_a_fit_goes_on_from_them(
    saved: str, package: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keras = importlib.import_module(package)
    tf.random.set_seed(1)  # as in the run that was killed: a part of the shuffle's seeds
    directory, expected = copied(saved, tmp_path)
    model = model_of(keras)
    callbacks = training.resume_callbacks(
        types.SimpleNamespace(checkpoint_dir=directory),
        callbacks=[keras.callbacks.EarlyStopping("loss", patience=9)],
        every_steps=5,
    )
    with caplog.at_level(logging.INFO):
        history = model.fit(dataset(), epochs=4, steps_per_epoch=6, verbose=0, callbacks=callbacks)
    assert "Resuming in epoch 3 after 3 of its batches (15 steps in all)" in caplog.text
    assert history.epoch == [0, 1, 2, 3]
    for name, values in expected["history"].items():
        np.testing.assert_allclose(history.history[name], values, rtol=1e-5)
    for weight, values in zip(model.get_weights(), expected["weights"], strict=True):
        np.testing.assert_allclose(weight.ravel(), values, rtol=1e-5)


def test_objects_are_restored_from_them(tmp_path: Path) -> None:
    directory, expected = copied("objects", tmp_path)
    weights = tf.Variable([0.0, 0.0])
    iterator = iter(tf.data.Dataset.range(20).shuffle(20, seed=1))
    with training.CheckpointManager(directory) as manager:
        saved = manager.restore_objects({"weights": weights, "iterator": iterator})
    assert saved is not None
    assert (saved.step, saved.metadata) == (5, {"epoch": 2})
    assert weights.numpy().tolist() == [1.0, 2.0]
    assert [int(each) for each in iterator] == expected["rest"]
