"""The one weight of `by_hand`, as a Keras trial."""

import tensorflow as tf

from generic_trainer.trials.keras import TFKerasTrial
from tests.trials.by_hand import RATE, X


def weight_layer():
    """Returns the layer, x → w x, w = 0."""
    return tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")


class OneWeight(TFKerasTrial):
    """Three training records, (1, 2, 3) · 2 → (2, 4, 6); starts at w = 0."""

    def __init__(self, context):
        self.context = context

    def make_model(self):
        return tf.keras.Sequential([tf.keras.Input([1]), weight_layer()])

    def make_optimizer(self):
        return tf.keras.optimizers.SGD(self.context.get_hparams().get("rate", RATE))

    def build_model(self):
        model = self.context.wrap_model(self.make_model())
        # Compiling for XLA would take most of the time of these tests.
        model.compile(self.make_optimizer(), "mse", metrics=["mae"], jit_compile=False)
        return model

    def build_training_data_loader(self):
        return X, 2 * X

    build_validation_data_loader = build_training_data_loader


class WithMomentum(OneWeight):
    """Has a slot variable, which a checkpoint must keep."""

    def make_optimizer(self):
        return tf.keras.optimizers.SGD(RATE / 10, momentum=0.5)
