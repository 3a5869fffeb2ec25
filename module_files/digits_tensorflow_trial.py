"""PEDL's `TensorFlowTrial` on handwritten digits: a TF1 graph, which the harness trains.

Such module files run with their import line changed. The component takes the experiment
configuration: ``custom_config={"hyperparameters": {...}, "searcher": {...}, "data": {...}}``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits

from generic_trainer.trials.tensorflow import TensorFlowTrial

__all__ = ["DigitsTrial", "make_data_loaders"]

_CLASSES = 10
_DARKEST = 16


def make_data_loaders(
    experiment_config: dict[str, Any], hparams: dict[str, Any]
) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Returns batches of {"image": float32 [N, 64], "label": int64 [N]}.

    Args:
        experiment_config: Its section `data` has `validation_records`, the size of that split.
        hparams: Has `global_batch_size`.
    """
    images, labels = load_digits(return_X_y=True)
    records = {"image": (images / _DARKEST).astype(np.float32), "label": labels.astype(np.int64)}
    data = tf.data.Dataset.from_tensor_slices(records)
    held_out = experiment_config["data"]["validation_records"]
    training = data.skip(held_out).shuffle(len(labels))
    batch_size = hparams["global_batch_size"]
    return training.batch(batch_size), data.take(held_out).batch(batch_size)


class DigitsTrial(TensorFlowTrial):
    """One hidden layer with dropout."""

    def __init__(self, hparams: dict[str, Any]) -> None:
        """Takes `units`, `dropout` and `learning_rate`."""
        self._hparams = hparams

    def build_graph(self, record: Any, is_training: tf.Tensor) -> dict[str, tf.Tensor]:
        """Builds the layers, the loss and the share of wrong answers."""
        hidden = tf.nn.relu(_dense(record["image"], self._hparams["units"], "hidden"))
        rate = tf.where(is_training, self._hparams["dropout"], 0.0)
        logits = _dense(tf.nn.dropout(hidden, rate=rate), _CLASSES, "logits")
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(record["label"], logits)
        wrong = tf.not_equal(tf.argmax(logits, axis=1), record["label"])
        return {
            "loss": tf.reduce_mean(losses),
            "error": tf.reduce_mean(tf.cast(wrong, tf.float32)),
            "scores": tf.nn.softmax(logits),
        }

    def optimizer(self) -> tf.train.Optimizer:
        """Returns Adam with a falling rate."""
        rate = tf.train.exponential_decay(
            self._hparams["learning_rate"], self.training_counter(), 500, 0.9
        )
        return tf.train.AdamOptimizer(rate)

    def training_metrics(self) -> list[str]:
        """Returns what is reported beside the loss."""
        return ["error"]

    def validation_metrics(self) -> list[str]:
        """Returns what is measured on the validation data."""
        return ["error"]


def _dense(inputs: tf.Tensor, units: int, name: str) -> tf.Tensor:
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [inputs.shape[1], units])
        return inputs @ kernel + tf.get_variable(
            "bias", [units], initializer=tf.zeros_initializer()
        )
