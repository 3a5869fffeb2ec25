"""Keras 2 itself is not converted by AutoGraph; what a user wrote for it works as without us."""

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.autograph.impl import conversion
from tensorflow.python.autograph.pyct import transpiler

from generic_trainer.training import _autograph, keras_2_left_alone

keras = pytest.importorskip("tf_keras")
L = keras.layers
ROWS = np.linspace(-1.0, 1.0, 64 * 4, dtype="float32").reshape(64, 4)
LABELS = (ROWS[:, :1] > 0).astype("float32")

# Later releases leave Keras 2 alone themselves, with all that is called without telling AutoGraph.
IS_ON_TENSORFLOWS_LIST = conversion.is_allowlisted(keras.Model)


def doubled_if_positive(tensor: Any) -> Any:
    """Returns what only AutoGraph makes a graph of."""
    if tf.reduce_sum(tensor) > 0:
        tensor = tensor * 2
    return tensor


class OwnStep(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        x, y = data
        return super().train_step((doubled_if_positive(x), y))


class OwnCall(keras.Sequential):
    def call(self, inputs: Any, training: Any = None) -> Any:
        return super().call(doubled_if_positive(inputs), training=training)


class OwnMask(L.Layer):
    def call(self, inputs: Any) -> Any:
        return inputs

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return tf.reduce_any(doubled_if_positive(inputs) > 0, axis=-1)


class OwnSchedule(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step: Any) -> Any:
        return 0.1 if step < 2 else 0.2


class OwnOptimizer(keras.optimizers.SGD):
    def update_step(self, gradient: Any, variable: Any) -> None:
        super().update_step(doubled_if_positive(gradient), variable)


class OwnLegacyOptimizer(keras.optimizers.legacy.SGD):
    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        return super()._resource_apply_dense(doubled_if_positive(grad), var, apply_state)


class OwnRegularizer(keras.regularizers.Regularizer):
    def __call__(self, weights: Any) -> Any:
        return doubled_if_positive(tf.reduce_sum(weights**2))


class OwnConstraint(keras.constraints.Constraint):
    def __call__(self, weights: Any) -> Any:
        return float(tf.size(weights)) * doubled_if_positive(weights)


class Constrained(L.Layer):
    """A layer whose constraint nobody sees before it is built, in the first step."""

    def build(self, shape: Any) -> None:
        self.add_weight(name="scale", shape=(1,), constraint=OwnConstraint())

    def call(self, inputs: Any) -> Any:
        return inputs * self.weights[0]


class OwnLoss(keras.losses.Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return doubled_if_positive(tf.reduce_mean((y_true - y_pred) ** 2, axis=-1))


class OwnMetric(keras.metrics.Mean):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().update_state(doubled_if_positive(y_pred))


def sequential(*layers: Any, kind: Any = keras.Sequential) -> Any:
    return kind([*layers, L.Dense(1)])


def compiled(model: Any, optimizer: Any = "sgd", loss: Any = "mse", **arguments: Any) -> Any:
    model.compile(optimizer, loss, **arguments)
    return model


def with_optimizer(make: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: compiled(sequential(), make())


# What Keras calls without telling AutoGraph; a function, as layers and variables have names.
NEED: dict[str, Callable[[], Any]] = {
    "train_step": lambda: compiled(sequential(kind=OwnStep)),
    "activation": lambda: compiled(sequential(L.Dense(4, activation=doubled_if_positive))),
    "Activation": lambda: compiled(sequential(L.Activation(doubled_if_positive))),
    "Lambda": lambda: compiled(sequential(L.Lambda(doubled_if_positive))),
    "regularizer": lambda: compiled(sequential(L.Dense(4, kernel_regularizer=OwnRegularizer()))),
    "activity": lambda: compiled(sequential(L.Dense(4, activity_regularizer=OwnRegularizer()))),
    "constraint": lambda: compiled(sequential(L.Dense(4, kernel_constraint=OwnConstraint()))),
    "mask": lambda: compiled(sequential(L.Reshape((4, 1)), OwnMask(), L.SimpleRNN(3))),
    "schedule": with_optimizer(lambda: keras.optimizers.SGD(OwnSchedule())),
    "legacy schedule": with_optimizer(lambda: keras.optimizers.legacy.SGD(OwnSchedule())),
    "optimizer": with_optimizer(OwnOptimizer),
    "legacy optimizer": with_optimizer(OwnLegacyOptimizer),
}
# What it tells AutoGraph of, and what no user wrote.
DO_NOT: dict[str, Callable[[], Any]] = {
    "library": lambda: compiled(
        sequential(L.Dense(8, "relu"), L.BatchNormalization(), L.Dropout(0.5), L.Flatten()),
        keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)),
        metrics=["mae", keras.metrics.AUC()],
    ),
    "recurrent": lambda: compiled(sequential(L.Reshape((4, 1)), L.Masking(), L.LSTM(3))),
    "call": lambda: compiled(sequential(kind=OwnCall)),
    "loss and metric": lambda: compiled(sequential(), loss=OwnLoss(), metrics=[OwnMetric()]),
    "function": lambda: compiled(sequential(), loss=lambda y, p: doubled_if_positive((y - p) ** 2)),
}


@pytest.mark.parametrize("name", NEED)
def test_what_autograph_is_not_told_of_is_seen(name: str) -> None:
    assert _autograph._needs_conversion(NEED[name]())


@pytest.mark.parametrize("name", DO_NOT)
def test_nothing_of_keras_is_converted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    converted = collections.Counter[str]()
    transform = transpiler.PyToPy.transform_function

    def counted(self: Any, function: Any, context: Any) -> Any:
        converted[getattr(function, "__module__", "")] += 1
        return transform(self, function, context)

    monkeypatch.setattr(transpiler.PyToPy, "transform_function", counted)
    model = DO_NOT[name]()
    with keras_2_left_alone():
        model.fit(ROWS, LABELS, verbose=0)
        model.evaluate(ROWS, LABELS, verbose=0)
        model.predict(ROWS, verbose=0)
    # But for the functions that Keras asks AutoGraph to convert: of data, of metrics, the step.
    assert sum(n for module, n in converted.items() if module.startswith("tf_keras")) <= 20
    assert not any(module.startswith("tf_keras.src.layers") for module in converted), converted
    assert "tf_keras.src.engine.base_layer" not in converted


# Of the models that need conversion one is enough: with and without us they are converted alike.
# One test, as a process that converts Keras 2 has to do so once.
@pytest.mark.slow
def test_weights_are_those_of_tensorflow_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    late = {"seen too late": lambda: compiled(sequential(Constrained()))}
    models = {"train_step": NEED["train_step"], **DO_NOT, **late}

    def weights(name: str) -> Any:
        keras.utils.set_random_seed(1)
        model = models[name]()
        with keras_2_left_alone():
            model.fit(ROWS, LABELS, verbose=0, epochs=2)
        return [weight.tolist() for weight in model.get_weights()]

    fail_alone = {*models} - {*DO_NOT} if IS_ON_TENSORFLOWS_LIST else set()
    for name in fail_alone:
        with pytest.raises((AttributeError, TypeError)):  # as it is without us
            weights(name)
    names = [name for name in models if name not in fail_alone]
    ours = {name: weights(name) for name in names}
    monkeypatch.setattr(_autograph, "_needs_conversion", lambda model: True)
    assert ours == {name: weights(name) for name in names}


@pytest.mark.skipif(IS_ON_TENSORFLOWS_LIST, reason="TensorFlow does not convert Keras 2")
def test_what_wraps_a_step_stays_when_it_is_traced_again() -> None:
    functions = []
    model = compiled(sequential(Constrained()))
    note = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: functions.append(model.train_function),
        on_batch_end=lambda batch, logs: functions.append(model.train_function),
    )
    with keras_2_left_alone():
        model.fit(ROWS, LABELS, verbose=0, epochs=2, callbacks=[note])
    assert functions.count(functions[0]) == len(functions) == 5
