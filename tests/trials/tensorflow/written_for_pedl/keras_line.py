"""A line by PEDL's TFKerasTrial, whose methods take hyperparameters."""

import numpy as np
import tensorflow as tf
from pedl.frameworks.keras import TFKerasTensorBoard, TFKerasTrial, wrap_dataset


def make_data_loaders(experiment_config, hparams):
    x = np.arange(8, dtype=np.float32)[:, None] / 8
    data = wrap_dataset(tf.data.Dataset.from_tensor_slices((x, 2 * x)))
    return data.batch(hparams["batch_size"]), data.batch(hparams["batch_size"])


class Remember(tf.keras.callbacks.Callback):
    batches = 0

    def on_train_batch_end(self, batch, logs=None):
        Remember.batches += 1


class LineTrial(TFKerasTrial):
    def session_config(self, hparams):
        return tf.compat.v1.ConfigProto(allow_soft_placement=hparams["batch_size"] > 0)

    def build_model(self, hparams):
        layers = [tf.keras.Input([1], name="x"), tf.keras.layers.Dense(1, use_bias=False)]
        model = tf.keras.Sequential(layers)
        model.compile(tf.keras.optimizers.SGD(lr=hparams["rate"]), "mse")
        return model

    def keras_callbacks(self, hparams):
        assert hparams["batch_size"] == 4
        return [TFKerasTensorBoard(update_freq="batch", profile_batch=0), Remember()]
