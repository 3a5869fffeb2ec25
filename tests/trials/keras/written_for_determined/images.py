"""An image classifier on arrays."""

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow import keras

from generic_trainer.trials.keras import TFKerasTrial, TFKerasTrialContext


class ImagesTrial(TFKerasTrial):
    def __init__(self, context: TFKerasTrialContext):
        # Initialize the trial class.
        self.context = context

    def build_model(self):
        model = keras.Sequential(
            [
                keras.layers.Flatten(input_shape=(8, 8)),
                keras.layers.Dense(self.context.get_hparam("dense1"), activation="relu"),
                keras.layers.Dense(10),
            ]
        )

        # Wrap the model.
        model = self.context.wrap_model(model)

        # Create and wrap the optimizer.
        optimizer = tf.keras.optimizers.Adam()
        optimizer = self.context.wrap_optimizer(optimizer)

        model.compile(
            optimizer=optimizer,
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )
        return model

    def build_training_data_loader(self):
        train_images, train_labels = load("train")
        return train_images / 16.0, train_labels

    def build_validation_data_loader(self):
        test_images, test_labels = load("test")
        return test_images / 16.0, test_labels


def load(split):
    images, labels = load_digits().images, load_digits().target
    where = slice(0, 1500) if split == "train" else slice(1500, None)
    return np.array(images[where]), np.array(labels[where])
