"""The one weight of `one_weight`, trained on batches that several devices can share."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from tests.trials.by_hand import X
from tests.trials.tensorflow.one_weight import WithMomentum


def make_data_loaders(experiment_config, hparams):
    """A training batch of two rows, then one of a single row; validation in batches of three."""
    data = tf.data.Dataset.from_tensor_slices({"x": X, "label": 2 * X})
    return data.batch(2), data.batch(3)


class SharedBatches(WithMomentum):
    """Also tells how many rows each device sees."""

    def build_graph(self, record, is_training):
        rows = tf.cast(tf.shape(record["x"])[0], tf.float32)
        return {**super().build_graph(record, is_training), "rows": rows}

    def training_metrics(self):
        return ["rows"]

    def validation_metrics(self):
        return ["loss", "rows", "counter"]
