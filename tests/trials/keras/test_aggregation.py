"""Keras trials whose steps are of several batches."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer._core.keras import is_keras_3
from generic_trainer.trials._trial import HorovodContext
from generic_trainer.trials.keras._aggregation import Aggregation
from tests.trials.by_hand import steps
from tests.trials.keras.one_weight import OneWeight


def every(count, **optimizations):
    return {"optimizations": {"aggregation_frequency": count, **optimizations}}


@pytest.mark.parametrize("average", [True, False])
def test_losses_are_those_computed_by_hand(open_trial, average):
    config = every(2, average_aggregated_gradients=average)
    trial = open_trial(config=config, hparams={"rate": 0.04})
    expected = [loss for _, loss in steps(9, rate=0.04, every=2, average=average)]
    assert [trial.train(1)["loss"] for _ in range(9)] == pytest.approx(expected, rel=1e-3)


OPTIMIZERS = {
    "momentum": lambda: tf.keras.optimizers.SGD(0.02, momentum=0.5, nesterov=True),
    "clipped": lambda: tf.keras.optimizers.Adam(0.1, clipnorm=0.5),
    "scheduled": lambda: tf.keras.optimizers.Adam(
        tf.keras.optimizers.schedules.ExponentialDecay(0.3, 2, 0.5)
    ),
}
if not is_keras_3():
    OPTIMIZERS["legacy"] = lambda: tf.keras.optimizers.legacy.Adam(0.1, decay=0.1)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_that_of_the_large_batch(open_trial, name):
    class Trial(OneWeight):
        def make_optimizer(self):
            return OPTIMIZERS[name]()

    small, large = open_trial(Trial, config=every(3)), open_trial(Trial, size=3)
    small.train(12), large.train(4)
    [[small], [large]] = small._model.get_weights(), large._model.get_weights()
    assert np.ravel(small) == pytest.approx(np.ravel(large), rel=1e-5)
    assert np.ravel(small)[0] > 0.1


class OwnStep(tf.keras.Sequential):
    """Trains by an optimizer that `compile` is not given."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.layers[0](x) - y))
        variables = self.layers[0].trainable_variables
        gradients = tape.gradient(loss, variables)
        self.own.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}


def test_an_optimizer_that_was_wrapped(open_trial):
    class Trial(OneWeight):
        def build_model(self):
            model = OwnStep(self.make_model().layers)
            model.own = self.context.wrap_optimizer(self.make_optimizer())
            self.context.wrap_model(model).compile(loss="mse", jit_compile=False)

    trial = open_trial(Trial, config=every(3))
    expected = [loss for _, loss in steps(7, every=3)]
    assert [trial.train(1)["loss"] for _ in range(7)] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("before", [2, 7])  # in the midst of the first step, and of a later one
def test_a_restored_trial_goes_on_within_a_step(resumed, before):
    class Trial(OneWeight):
        def make_optimizer(self):
            kinds = tf.keras.optimizers
            return (kinds if is_keras_3() else kinds.legacy).Adam(0.1)

    expected, found = resumed(Trial, before=before, config=every(3))
    assert found == expected


def test_what_makes_a_function_may_return_another():
    class Model:
        train_function = None

        def make_train_function(self):
            self.train_function = "what Keras 2 has made"
            return "the same, which leaves Keras 2 alone"

    assert Aggregation(HorovodContext()).function(Model(), 0) == Model().make_train_function()
