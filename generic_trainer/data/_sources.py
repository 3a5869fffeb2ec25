"""The columns that sparse and ragged tensors are made of, compared row by row.

TensorFlow makes such a tensor of a whole batch: where one row has an index too many and a later one
a value too many, all values between them would move to another row, without an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf


def source_features(features: Mapping[str, Any]) -> dict[str, Any]:
    """Returns column → `tf.io` configuration, for `fits` and beside the features themselves."""
    sources: dict[str, Any] = {}
    for feature in features.values():
        if isinstance(feature, tf.io.SparseFeature):
            for key in feature.index_key:
                sources[key] = tf.io.VarLenFeature(tf.int64)
            sources[feature.value_key] = tf.io.VarLenFeature(feature.dtype)
        elif partitions := getattr(feature, "partitions", ()):
            dtype = feature.row_splits_dtype
            sources[feature.value_key] = tf.io.RaggedFeature(feature.dtype, row_splits_dtype=dtype)
            for key in _length_keys(partitions):
                sources[key] = tf.io.RaggedFeature(tf.int64, row_splits_dtype=dtype)
    return sources


def _length_keys(partitions: Any) -> list[str]:
    return [part.key for part in partitions if isinstance(part, tf.io.RaggedFeature.RowLengths)]


def fits(features: Mapping[str, Any], parsed: Mapping[str, Any]) -> list[tf.Tensor]:
    """Returns for each tensor of several columns whether these fit each other in all rows.

    Args:
        features: the configurations of the tensors.
        parsed: column → tensor, among others those of `source_features`.
    """
    return [
        tf.reduce_all(fitting)
        for feature in features.values()
        for fitting in _fitting(feature, parsed)
    ]


def _fitting(feature: Any, parsed: Mapping[str, Any]) -> Iterator[tf.Tensor]:
    if isinstance(feature, tf.io.SparseFeature):
        number = _lengths(parsed[feature.value_key])
        for key in feature.index_key:
            yield tf.equal(_lengths(parsed[key]), number)
        return
    partitions = getattr(feature, "partitions", ())
    if not partitions:
        return
    number = _lengths(parsed[feature.value_key])
    for part in reversed(partitions):  # from the values to the outermost lists
        if isinstance(part, tf.io.RaggedFeature.RowLengths):
            lengths = parsed[part.key]
            yield lengths.flat_values >= 0
            yield tf.equal(tf.cast(tf.reduce_sum(lengths, axis=1), tf.int64), number)
            number = _lengths(lengths)
        else:
            yield tf.equal(number % part.length, 0)
            number //= part.length


def _lengths(lists: Any) -> tf.Tensor:
    """Returns the number of values in each row, int64 [rows]."""
    if isinstance(lists, tf.RaggedTensor):
        return tf.cast(lists.row_lengths(), tf.int64)
    rows = lists.indices[:, 0]
    return tf.math.unsorted_segment_sum(tf.ones_like(rows), rows, lists.dense_shape[0])


def misfit(feature: Any, values: Mapping[str, tf.train.Feature]) -> str | None:
    """Returns how the columns of a tensor differ in a record, in words; None: they fit."""
    if isinstance(feature, tf.io.SparseFeature):
        number = _number(values, feature.value_key)
        for key in feature.index_key:
            if _number(values, key) != number:
                return (
                    f"expected an index in {key!r} for each value, found {_number(values, key)} "
                    f"indices and {number} value(s)"
                )
    partitions = getattr(feature, "partitions", ())
    number = _number(values, feature.value_key) if partitions else 0
    for part in reversed(partitions):
        if isinstance(part, tf.io.RaggedFeature.RowLengths):
            if _number(values, part.key) and not values[part.key].HasField("int64_list"):
                return None  # the error of TensorFlow says so
            lengths = values[part.key].int64_list.value if part.key in values else ()
            if sum(lengths) != number or min(lengths, default=0) < 0:
                return (
                    f"expected lengths in {part.key!r} whose sum is {number}, the number of what "
                    f"they divide, found {list(lengths[:10])}"
                )
            number = len(lengths)
        elif part.length < 1:
            return None  # a mistake in the schema, and none of the record
        elif number % part.length:
            return f"expected lists of {part.length} values, found {number} value(s) for them"
        else:
            number //= part.length
    return None


def _number(values: Mapping[str, tf.train.Feature], key: str) -> int:
    kind = values[key].WhichOneof("kind") if key in values else None
    return len(getattr(values[key], kind).value) if kind else 0


def out_of_order(features: Mapping[str, Any], parsed: Mapping[str, Any]) -> tf.Tensor:
    """Returns whether a sparse tensor repeats an index, or has one out of order or shape.

    TFX's reader yields such tensors as they are. But `SerializeManySparse`, by which batches are
    cut out of columns, refuses them.
    """
    found = tf.constant(False)
    for key, feature in features.items():
        if isinstance(feature, tf.io.SparseFeature):
            sizes = list(feature.size)
            # The first place that differs decides: a power of 3 exceeds the sum of smaller ones.
            weights = [3**place for place in reversed(range(len(sizes) + 1))]
            indices = parsed[key].indices
            inside = (indices[:, 1:] >= 0) & (indices[:, 1:] < tf.constant(sizes, tf.int64))
            steps = tf.linalg.matvec(
                tf.sign(indices[1:] - indices[:-1]), tf.constant(weights, tf.int64)
            )
            found |= ~tf.reduce_all(inside) | tf.reduce_any(steps <= 0)
    return found
