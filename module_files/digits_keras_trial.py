"""Determined's `TFKerasTrial` on handwritten digits: a convolutional network, early stopping.

Such module files run with their import lines changed. The command line takes Determined's file, and
the component its content: ``custom_config={"hyperparameters": {...}, "searcher": {...}, ...}``.

::

    generic-trainer run digits_keras_trial.py --config digits_keras_trial.yaml --output runs
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from generic_trainer.trials.keras import TFKerasTrial, TFKerasTrialContext, callbacks

__all__ = ["DigitsTrial"]

_SIDE = 8
_CLASSES = 10
_DARKEST = 16


class DigitsTrial(TFKerasTrial):
    """One convolution and one hidden layer with dropout.

    The section `data` of the configuration has `validation_records`, the size of that split.
    """

    def __init__(self, context: TFKerasTrialContext) -> None:
        """Takes `filters`, `dropout` and `learning_rate`, and `patience` in validations."""
        self.context = context

    def build_model(self) -> tf.keras.Model:
        """Builds and compiles the network; the harness trains it."""
        hparam = self.context.get_hparam
        model = tf.keras.Sequential(
            [
                tf.keras.Input([_SIDE, _SIDE, 1], name="image"),
                tf.keras.layers.Conv2D(hparam("filters"), 3, activation="relu"),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dropout(hparam("dropout")),
                tf.keras.layers.Dense(_CLASSES, activation="softmax", name="scores"),
            ]
        )
        model = self.context.wrap_model(model)
        model.compile(
            optimizer=tf.keras.optimizers.Adam(hparam("learning_rate")),
            loss="sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        return model

    def build_training_data_loader(self) -> tf.data.Dataset:
        """Returns shuffled batches of (image float32 [N, 8, 8, 1], label int64 [N])."""
        images, labels = _digits()
        held_out = self.context.get_data_config()["validation_records"]
        data = tf.data.Dataset.from_tensor_slices((images[held_out:], labels[held_out:]))
        data = data.shuffle(len(labels)).batch(self.context.get_per_slot_batch_size())
        return self.context.wrap_dataset(data)

    def build_validation_data_loader(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the images and labels that are held out."""
        images, labels = _digits()
        held_out = self.context.get_data_config()["validation_records"]
        return images[:held_out], labels[:held_out]

    def keras_callbacks(self) -> list[tf.keras.callbacks.Callback]:
        """Returns what stops training when accuracy no longer grows."""
        patience = self.context.get_hparam("patience")
        return [callbacks.EarlyStopping("val_accuracy", patience=patience, mode="max")]


def _digits() -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    images = (images / _DARKEST).astype(np.float32).reshape(-1, _SIDE, _SIDE, 1)
    return images, labels.astype(np.int64)
