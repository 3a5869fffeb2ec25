"""Shifted images by Keras's generator, which worker threads read."""

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow.keras import layers
from tensorflow.keras.preprocessing.image import ImageDataGenerator

import generic_trainer.trials.keras as det
from generic_trainer.trials.keras import SequenceAdapter, TFKerasTrial

CLASSES = 10
HELD_OUT = 297


def categorical_error(y_true, y_pred):
    return 1.0 - tf.keras.metrics.categorical_accuracy(y_true, y_pred)


class CountWorkloads(det.callbacks.Callback):
    """Has a hook of each kind, and a state that goes into checkpoints."""

    def __init__(self):
        self.workloads = 0

    def on_train_workload_end(self, total_batches_trained, logs):
        self.workloads += 1

    def on_test_end(self, logs=None):
        logs["workloads"] = self.workloads

    def get_state(self):
        return self.workloads

    def load_state(self, state):
        self.workloads = state


class AugmentedTrial(TFKerasTrial):
    def __init__(self, context):
        self.context = context
        self.processes = context.get_data_config().get("processes", False)
        digits = load_digits()
        self.images = np.float32(digits.images)[..., np.newaxis] / 16
        self.labels = np.eye(CLASSES, dtype=np.float32)[digits.target]

    def build_model(self):
        model = tf.keras.Sequential(
            [
                layers.Conv2D(16, 3, padding="same", activation="relu", input_shape=(8, 8, 1)),
                layers.MaxPooling2D(),
                layers.Dropout(self.context.get_hparam("dropout")),
                layers.Flatten(),
                layers.Dense(CLASSES, activation="softmax"),
            ]
        )
        model = self.context.wrap_model(model)
        rate = self.context.get_hparam("learning_rate")
        model.compile(
            tf.keras.optimizers.RMSprop(rate),
            "categorical_crossentropy",
            metrics=["accuracy", categorical_error],
        )
        return model

    def keras_callbacks(self):
        slower = det.callbacks.ReduceLROnPlateau(monitor="val_categorical_error", patience=2)
        return [CountWorkloads(), slower]

    def build_training_data_loader(self):
        shifts = ImageDataGenerator(width_shift_range=0.1, height_shift_range=0.1)
        sequence = shifts.flow(
            self.images[:-HELD_OUT],
            self.labels[:-HELD_OUT],
            batch_size=self.context.get_per_slot_batch_size(),
        )
        return SequenceAdapter(
            sequence, workers=2, use_multiprocessing=self.processes, max_queue_size=4
        )

    def build_validation_data_loader(self):
        self.context.configure_fit(workers=0)
        return ImageDataGenerator().flow(
            self.images[-HELD_OUT:], self.labels[-HELD_OUT:], batch_size=64, shuffle=False
        )
