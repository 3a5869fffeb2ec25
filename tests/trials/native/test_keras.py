"""`keras.init`: a model whose fit is one batch here."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.trials._scripts.task import run_experiment
from generic_trainer.trials.native import InvalidExperimentException, Mode, keras

CONFIG = {"hyperparameters": {"global_batch_size": 2, "rate": 0.1}}
X = np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)


class Notes(tf.keras.callbacks.Callback):
    """Weights before and after training, and how often it was called."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append("batch")

    def on_test_batch_end(self, batch, logs=None):
        self.calls.append("test")


def make_model(context):
    layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = context.wrap_model(tf.keras.Sequential([tf.keras.layers.Input((1,)), layer]))
    model.compile(tf.keras.optimizers.SGD(context.get_hparam("rate")), "mse")
    return model


@pytest.mark.parametrize("arguments", [{"local": True, "test": True}, {"mode": Mode.LOCAL}])
def test_fit_trains_one_batch_and_validates_once(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    context = keras.init(CONFIG, **arguments)
    model, notes = make_model(context), Notes()
    found = model.fit(
        X, 2 * X, batch_size=4, epochs=9, validation_data=(X[:3], 2 * X[:3]), callbacks=[notes]
    )
    assert found is None
    assert notes.calls == ["batch", "test", "test"]
    # One step by hand: the gradient of ((0 - 2)² + (0 - 4)²) / 2 at w = 0 is -10.
    assert model.get_weights()[0] == pytest.approx(1.0)
    assert os.listdir(tmp_path) == []


def test_fit_before_compile():
    context = keras.init(CONFIG, local=True, test=True)
    model = context.wrap_model(tf.keras.Sequential([tf.keras.layers.Dense(1)]))
    with pytest.raises(InvalidExperimentException, match=r"Must call \.compile before"):
        model.fit(X, X)


SCRIPT = """
import numpy as np
import tensorflow as tf
from generic_trainer.trials.native import keras

context = keras.init({}, context_dir=".")
layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
model = context.wrap_model(tf.keras.Sequential([tf.keras.layers.Input((1,)), layer]))
model.compile(tf.keras.optimizers.SGD(context.get_hparam("rate")), "mse")
x = np.array([[1.0], [2.0]], np.float32)
model.fit(x, 2 * x, validation_data=(x, 2 * x), epochs=9)
raise RuntimeError("the script goes no further")
"""


def test_a_script_on_the_cluster_trains_each_trial(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    config = {
        "hyperparameters": {
            "global_batch_size": 2,
            "rate": {"type": "categorical", "vals": [0.001, 0.1]},
        },
        "searcher": {"name": "grid", "metric": "val_loss", "max_length": {"batches": 3}},
    }
    results = tmp_path / "results"
    run_experiment([str(tmp_path / "train.py")], config, str(results))
    slow, fast = json.loads((results / "model_run" / "trials.json").read_text())
    # w after each step, by hand: 2 - w shrinks by 1 - 5 · rate.
    assert fast["best"] == pytest.approx((2 * 0.5**3) ** 2 * 2.5, rel=1e-4)
    assert slow["best"] == pytest.approx((2 * 0.995**3) ** 2 * 2.5, rel=1e-4)
    assert (results / "Format-Serving" / "saved_model.pb").exists()
