"""Tabular data from CSV files."""

import pandas as pd
import tensorflow as tf
from tensorflow.keras.layers import Dense, Input
from tensorflow.keras.models import Model
from tensorflow.keras.optimizers import RMSprop
from tensorflow.keras.utils import to_categorical

from generic_trainer.trials import keras
from generic_trainer.trials.keras import TFKerasTensorBoard, TFKerasTrial, TFKerasTrialContext

NUM_CLASSES = 3
DS_COLUMNS = ["sepal_length", "sepal_width", "petal_length", "petal_width", "species"]


class FlowersTrial(TFKerasTrial):
    def __init__(self, context: TFKerasTrialContext) -> None:
        self.context = context

    def keras_callbacks(self) -> list[tf.keras.callbacks.Callback]:
        return [
            TFKerasTensorBoard(update_freq="batch", profile_batch=0, histogram_freq=1),
            keras.callbacks.EarlyStopping(monitor="val_loss", patience=50),
        ]

    def build_model(self) -> Model:
        inputs = Input(shape=(4,))
        dense1 = Dense(self.context.get_hparam("layer1_dense_size"))(inputs)
        dense2 = Dense(NUM_CLASSES, activation="softmax")(dense1)

        # Wrap the model.
        model = self.context.wrap_model(Model(inputs=inputs, outputs=dense2))

        # Create and wrap optimizer.
        optimizer = RMSprop(learning_rate=self.context.get_hparam("learning_rate"))
        optimizer = self.context.wrap_optimizer(optimizer)

        model.compile(
            optimizer,
            tf.keras.losses.categorical_crossentropy,
            [tf.keras.metrics.categorical_accuracy],
        )
        return model

    def build_training_data_loader(self) -> keras.SequenceAdapter:
        # The first column is not a header.
        data_config = self.context.get_data_config()
        train = pd.read_csv(data_config["train_url"], names=DS_COLUMNS, header=0)
        train_features, train_labels = train, train.pop("species")

        # One-hot labels for the three species.
        train_labels_categorical = to_categorical(train_labels, num_classes=NUM_CLASSES)

        return train_features.values, train_labels_categorical

    def build_validation_data_loader(self) -> keras.SequenceAdapter:
        test = pd.read_csv(self.context.get_data_config()["test_url"], names=DS_COLUMNS, header=0)
        test_features, test_labels = test, test.pop("species")
        return test_features.values, to_categorical(test_labels, num_classes=NUM_CLASSES)
