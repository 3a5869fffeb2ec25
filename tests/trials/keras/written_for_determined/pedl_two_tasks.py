"""Digits by Keras trials of PEDL's first releases, which name their metrics in dicts."""

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from generic_trainer.trials.keras import InMemorySequence, KerasFunctionalTrial, KerasTrial

categorical_accuracy = tf.keras.metrics.sparse_categorical_accuracy


def error(y_true, y_pred):
    return 1.0 - categorical_accuracy(y_true, y_pred)


def make_data_loaders(experiment_config, hparams):
    images, labels = load_digits(return_X_y=True)
    images, size = (images / 16).astype("float32"), hparams["batch_size"]
    if hparams["tasks"] == 2:
        labels = {"digit": labels, "is_high": (labels >= 5).astype("float32")}
        part = lambda rows: {name: column[rows] for name, column in labels.items()}  # noqa: E731
    else:
        part = labels.__getitem__
    train, test = np.arange(300, len(images)), np.arange(300)
    return (
        InMemorySequence(images[train], part(train), size, drop_leftovers=True),
        InMemorySequence(images[test], part(test), size),
    )


class OneTaskTrial(KerasTrial):
    def build_model(self, hparams):
        layers = [tf.keras.Input([64], name="image"), tf.keras.layers.Dense(10, "softmax")]
        return tf.keras.Sequential(layers)

    def batch_size(self):
        return self.hparams["batch_size"]

    def optimizer(self):
        return tf.keras.optimizers.Adam(0.01)

    def loss(self):
        return tf.keras.losses.sparse_categorical_crossentropy

    def training_metrics(self):
        return {"accuracy": categorical_accuracy}

    def validation_metrics(self):
        return {"validation_error": error}


class TwoTasksTrial(KerasFunctionalTrial):
    def build_model(self, hparams):
        image = tf.keras.Input([64], name="image")
        digit = tf.keras.layers.Dense(10, "softmax", name="digit")(image)
        return tf.keras.Model(
            image, [digit, tf.keras.layers.Dense(1, "sigmoid", name="is_high")(image)]
        )

    def optimizer(self):
        return tf.keras.optimizers.Adam(0.01)

    def losses(self):
        return {
            "digit": tf.keras.losses.sparse_categorical_crossentropy,
            "is_high": tf.keras.losses.binary_crossentropy,
        }

    def training_metrics(self):
        return {
            "digit_accuracy": ("digit", categorical_accuracy),
            "high_accuracy": ("is_high", tf.keras.metrics.binary_accuracy),
        }

    validation_metrics = training_metrics


class OneOutputTrial(KerasFunctionalTrial, OneTaskTrial):
    def losses(self):
        return {"scores": tf.keras.losses.sparse_categorical_crossentropy}

    def build_model(self, hparams):
        image = tf.keras.Input([64], name="image")
        return tf.keras.Model(image, tf.keras.layers.Dense(10, "softmax", name="scores")(image))

    def training_metrics(self):
        accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="right")
        return {"accuracy": ("scores", accuracy)}

    def validation_metrics(self):
        return self.training_metrics()


class TwoMetricsOfOneNameTrial(OneTaskTrial):
    def validation_metrics(self):
        return {"accuracy": error}
