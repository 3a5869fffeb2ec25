"""y = w x with one weight and squared error: every number can be had by hand."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

from generic_trainer.trials.tensorflow import TensorFlowTrial

RATE = 0.1


def make_data_loaders(experiment_config, hparams):
    """Three training batches, (1, 2, 3) · 2 → (2, 4, 6); validation in batches of 2 and 1."""
    x = np.array([[1.0], [2.0], [3.0]], np.float32)
    data = tf.data.Dataset.from_tensor_slices({"x": x, "label": 2 * x})
    training = data.shuffle(3) if experiment_config["data"].get("shuffle") else data
    return training.batch(1), data.batch(2)


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


def steps(count, *, rate=RATE):
    """Yields (weight before, loss) of gradient descent by hand, batch after batch."""
    w = 0.0
    for index in range(count):
        x = float(index % 3 + 1)
        error = w * x - 2 * x
        yield w, error**2
        w -= rate * 2 * error * x
