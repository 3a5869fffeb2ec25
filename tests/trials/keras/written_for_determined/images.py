"""Handwritten digits as arrays; the model is built by a function of its own."""

import tensorflow as tf
from sklearn.datasets import load_digits

import generic_trainer.trials.keras as det

HELD_OUT = 297


def network(units):
    network = tf.keras.Sequential(name="digits")
    network.add(tf.keras.Input((8, 8)))
    network.add(tf.keras.layers.Rescaling(1 / 16))
    network.add(tf.keras.layers.Flatten())
    network.add(tf.keras.layers.Dense(units, "relu"))
    network.add(tf.keras.layers.Dense(10))
    return network


class ImagesTrial(det.TFKerasTrial):
    def __init__(self, context: det.TFKerasTrialContext):
        self.context = context

    def build_model(self):
        model = self.context.wrap_model(network(self.context.get_hparam("units")))
        model.compile(
            self.context.wrap_optimizer(tf.keras.optimizers.Adam()),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            [tf.keras.metrics.SparseCategoricalAccuracy("accuracy")],
        )
        return model

    def build_training_data_loader(self):
        digits = load_digits()
        return digits.images[:-HELD_OUT], digits.target[:-HELD_OUT]

    def build_validation_data_loader(self):
        digits = load_digits()
        return digits.images[-HELD_OUT:], digits.target[-HELD_OUT:]
