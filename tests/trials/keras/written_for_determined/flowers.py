"""Measurements of flowers, from CSV files that the section `data` of the configuration names."""

import pandas as pd
from tensorflow import keras

from generic_trainer.trials.keras import (
    InputData,
    TFKerasTensorBoard,
    TFKerasTrial,
    TFKerasTrialContext,
    callbacks,
)

KINDS = 3


class FlowersTrial(TFKerasTrial):
    def __init__(self, context: TFKerasTrialContext) -> None:
        self.context = context
        self.files = context.get_data_config()

    def build_model(self) -> keras.Model:
        measured = keras.Input((4,))
        hidden = keras.layers.Dense(self.context.get_hparam("hidden"), "tanh")(measured)
        kind = keras.layers.Dense(KINDS, "softmax")(hidden)
        model = self.context.wrap_model(keras.Model(measured, kind))
        optimizer = keras.optimizers.RMSprop(self.context.get_hparam("learning_rate"))
        model.compile(
            self.context.wrap_optimizer(optimizer),
            loss=keras.losses.categorical_crossentropy,
            metrics=[keras.metrics.categorical_accuracy],
        )
        return model

    def keras_callbacks(self) -> list:
        return [
            TFKerasTensorBoard(update_freq="batch", profile_batch=0, histogram_freq=1),
            callbacks.EarlyStopping("val_loss", patience=50),
        ]

    def build_training_data_loader(self) -> InputData:
        return self.read("train_url")

    def build_validation_data_loader(self) -> InputData:
        return self.read("test_url")

    def read(self, url: str):
        table = pd.read_csv(self.files[url], header=None, skiprows=1).to_numpy()
        return table[:, :4], keras.utils.to_categorical(table[:, 4], KINDS)
