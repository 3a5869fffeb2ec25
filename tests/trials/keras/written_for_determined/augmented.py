"""A convolutional network on augmented images, read by worker threads."""

import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow.keras.layers import Activation, Conv2D, Dense, Dropout, Flatten, MaxPooling2D
from tensorflow.keras.models import Sequential
from tensorflow.keras.preprocessing.image import ImageDataGenerator
from tensorflow.keras.utils import to_categorical

from generic_trainer.trials import keras as det_keras
from generic_trainer.trials.keras import SequenceAdapter, TFKerasTrial


def categorical_error(y_true, y_pred):
    return 1.0 - tf.keras.metrics.categorical_accuracy(y_true, y_pred)


class RecordLR(det_keras.callbacks.Callback):
    """Checks that hooks of both kinds are called."""

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
        self.base_learning_rate = self.context.get_hparam("learning_rate")
        self.train_batch_size = self.context.get_per_slot_batch_size()
        self.use_multiprocessing = self.context.get_data_config().get("processes", False)

    def build_model(self):
        model = Sequential()
        model.add(Conv2D(16, (3, 3), padding="same", input_shape=(8, 8, 1)))
        model.add(Activation("relu"))
        model.add(MaxPooling2D(pool_size=(2, 2)))
        model.add(Dropout(self.context.get_hparam("layer1_dropout")))
        model.add(Flatten())
        model.add(Dense(10, name="dense_last"))
        model.add(Activation("softmax"))

        # Wrap the model.
        model = self.context.wrap_model(model)
        model.compile(
            tf.keras.optimizers.RMSprop(self.base_learning_rate),
            "categorical_crossentropy",
            metrics=["accuracy", categorical_error],
        )
        return model

    def keras_callbacks(self):
        return [
            RecordLR(),
            det_keras.callbacks.ReduceLROnPlateau(monitor="val_categorical_error", patience=2),
        ]

    def build_training_data_loader(self):
        images, labels = self._data(slice(0, 1500))
        datagen = ImageDataGenerator(width_shift_range=0.1, height_shift_range=0.1)
        train_seq = datagen.flow(images, labels, batch_size=self.train_batch_size)
        return SequenceAdapter(
            train_seq, workers=2, use_multiprocessing=self.use_multiprocessing, max_queue_size=4
        )

    def build_validation_data_loader(self):
        images, labels = self._data(slice(1500, None))
        self.context.configure_fit(workers=0)
        return ImageDataGenerator().flow(images, labels, batch_size=64, shuffle=False)

    def _data(self, where):
        digits = load_digits()
        images = digits.images[where][..., None] / 16.0
        return images.astype("float32"), to_categorical(digits.target[where], 10)
