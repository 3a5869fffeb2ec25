"""`keras.init`: a model whose fit is one batch here."""

import os

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.trials import get_download_data_dir
from generic_trainer.trials.keras import KerasTrial
from generic_trainer.trials.native import InvalidExperimentException, Mode, experimental, keras

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
    optimizer = tf.keras.optimizers.SGD(context.get_hparam("rate"))
    model.compile(optimizer, "mse", steps_per_execution=2)
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


def test_fit_needs_validation_data():
    model = make_model(keras.init(CONFIG, local=True, test=True))
    with pytest.raises(InvalidExperimentException, match="pass validation_data"):
        model.fit(X, X, validation_split=0.5)


def download_data(experiment_config, hparams):
    return "a directory"


def make_data_loaders(experiment_config, hparams):
    assert get_download_data_dir() == "a directory"
    return (X, X), (X, X)


class Downloaded(KerasTrial):
    def build_model(self, hparams):
        model = tf.keras.Sequential([tf.keras.Input([1]), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model


def test_data_of_pedl_are_downloaded():
    experimental.test_one_batch(Downloaded, CONFIG)


def test_a_model_that_failed_is_not_trained_on(tmp_path):
    own = {"max_restarts": 1, "searcher": {"max_length": {"batches": 2}}}
    storage = {"checkpoint_storage": {"host_path": str(tmp_path)}}
    model = make_model(keras.init({**CONFIG, **own, **storage}, local=True))
    divisors = iter([0])
    fail = tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_: 1 / next(divisors, 1))
    with pytest.raises(ZeroDivisionError):
        model.fit(X, X, validation_data=(X, X), callbacks=[fail])
