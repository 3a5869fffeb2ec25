"""y = w x with one weight and squared error: every number can be had by hand."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from generic_trainer.trials.keras import TFKerasTrial

RATE = 0.1
X = np.array([[1.0], [2.0], [3.0]], np.float32)


class OneWeight(TFKerasTrial):
    """Three training records, (1, 2, 3) · 2 → (2, 4, 6); starts at w = 0."""

    def __init__(self, context):
        self.context = context

    def make_model(self):
        return tf.keras.Sequential(
            [
                tf.keras.Input([1]),
                tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
            ]
        )

    def make_optimizer(self):
        return tf.keras.optimizers.SGD(RATE)

    def build_model(self):
        model = self.context.wrap_model(self.make_model())
        # Compiling for XLA would take most of the time of these tests.
        model.compile(self.make_optimizer(), "mse", metrics=["mae"], jit_compile=False)
        return model

    def build_training_data_loader(self):
        return X, 2 * X

    def build_validation_data_loader(self):
        return X, 2 * X


class WithMomentum(OneWeight):
    """Has a slot variable, which a checkpoint must keep."""

    def make_optimizer(self):
        return tf.keras.optimizers.SGD(RATE / 10, momentum=0.5)


def steps(count, *, rate=RATE):
    """Yields (weight before, loss) of gradient descent by hand, batch after batch."""
    w = 0.0
    for index in range(count):
        x = float(index % 3 + 1)
        error = w * x - 2 * x
        yield w, error**2
        w -= rate * 2 * error * x
