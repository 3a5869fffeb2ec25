"""The one weight of `by_hand`, as a TF1 graph."""

import numpy as np
import tensorflow.compat.v1 as tf

from generic_trainer.trials.tensorflow import TensorFlowTrial
from tests.trials.by_hand import RATE, X


def make_data_loaders(experiment_config, hparams):
    """Three training batches, (1, 2, 3) · 2 → (2, 4, 6); validation in batches of 2 and 1."""
    data = tf.data.Dataset.from_tensor_slices({"x": X, "label": 2 * X})
    if experiment_config["data"].get("noisy"):
        data = data.map(noisy)
    shuffled = data.shuffle(3, np.random.randint(1 << 30))  # as the seed of the trial has it
    training = shuffled if experiment_config["data"].get("shuffle") else data
    return training.batch(1), data.batch(2)


def noisy(record):
    def drawn(x):
        return x + np.random.normal(size=x.shape).astype("float32")

    x = tf.numpy_function(drawn, [record["x"]], tf.float32)
    return {**record, "x": tf.ensure_shape(x, record["x"].shape)}


class OneWeight(TensorFlowTrial):
    """Starts at w = 0."""

    def __init__(self, hparams):
        self.rate = hparams.get("rate", RATE)

    def build_graph(self, record, is_training):
        w = tf.get_variable("w", [1, 1], initializer=tf.zeros_initializer())
        prediction = record["x"] @ w
        return {
            "loss": tf.reduce_mean(tf.square(prediction - record["label"])),
            "w": tf.reduce_sum(w),
            "training": tf.cast(is_training, tf.float32),
            "counter": self.training_counter(),
            "vector": tf.reduce_mean(record["x"] * [[1.0, 2.0]], axis=0),
        }

    def optimizer(self):
        return tf.train.GradientDescentOptimizer(self.rate)

    def training_metrics(self):
        return ["w", "training"]

    def validation_metrics(self):
        return ["loss", "training", "w", "vector", "counter"]


class WithMomentum(OneWeight):
    """Has a slot variable, which a checkpoint must keep."""

    def optimizer(self):
        return tf.train.MomentumOptimizer(self.rate, 0.5)
