"""Digits by a Keras trial of PEDL, whose data are in memory."""

import tensorflow as tf
from sklearn.datasets import load_digits

from generic_trainer.trials.keras import KerasTrial
from generic_trainer.trials.keras.data import InMemorySequence


def make_data_loaders(experiment_config, hparams):
    images, labels = load_digits(return_X_y=True)
    images, size = (images / 16).astype("float32"), hparams["batch_size"]
    return (
        InMemorySequence(images[300:], labels[300:], size, drop_leftovers=True),
        InMemorySequence(images[:300], labels[:300], size),
    )


class DigitsTrial(KerasTrial):
    def build_model(self, hparams):
        layers = [tf.keras.Input([64], name="image"), tf.keras.layers.Dense(10, "softmax")]
        model = tf.keras.Sequential(layers)
        optimizer = tf.keras.optimizers.Adam(hparams["learning_rate"])
        model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model


class UncompiledTrial(DigitsTrial):
    def build_model(self, hparams):
        layers = [tf.keras.Input([64], name="image"), tf.keras.layers.Dense(10, "softmax")]
        return tf.keras.Sequential(layers)

    def optimizer(self):
        return tf.keras.optimizers.Adam(self.hparams["learning_rate"])

    def loss(self):
        return "sparse_categorical_crossentropy"

    def metrics(self):
        return ["accuracy"]
