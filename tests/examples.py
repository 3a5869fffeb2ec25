"""Serialized tf.Examples of plain values."""

from typing import Any

import tensorflow as tf


def example(**features: Any) -> bytes:
    """Returns a serialized tf.Example; the type of a feature is that of its first value."""
    made = {key: feature_of(values) for key, values in features.items()}
    return tf.train.Example(features={"feature": made}).SerializeToString(deterministic=True)


def feature_of(values: Any) -> tf.train.Feature:
    """Returns a value, or a list of them, as a feature of its type."""
    values = values if isinstance(values, (list, tuple)) else [values]
    values = [each.encode() if isinstance(each, str) else each for each in values]
    if not values:
        return tf.train.Feature()
    kind = {bytes: "bytes_list", float: "float_list"}.get(type(values[0]), "int64_list")
    return tf.train.Feature(**{kind: {"value": values}})
