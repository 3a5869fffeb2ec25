"""Features with inner structure: `SparseFeature`s and ragged features with partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer.data._column import Column, Fixed, Varying
from generic_trainer.data._parts import Arrays, Features, Packed

__all__ = ["RaggedPart", "SparsePart"]

_LENGTH = tf.int32


@dataclass(frozen=True)
class SparsePart:
    """One `tf.io.SparseFeature`.

    Attributes:
        shape: dense shape of one example.
    """

    key: str
    dtype: tf.DType
    shape: tuple[int, ...]
    separator: bytes

    @property
    def columns(self) -> tuple[Fixed, Varying, Varying]:
        """Number of values in a row, their indices within it, and the values."""
        return (
            Fixed(_LENGTH, 1),
            Varying(tf.int64, self.separator),
            Varying(self.dtype, self.separator),
        )

    def pack(self, parsed: Mapping[str, Any]) -> Packed:
        """Returns the arrays of the parsed feature."""
        sparse = parsed[self.key]
        row_of_value, batch = sparse.indices[:, 0], sparse.dense_shape[0]
        values = tf.RaggedTensor.from_value_rowids(
            sparse.values, row_of_value, nrows=batch, validate=False
        )
        lengths = values.row_lengths()
        indices = tf.RaggedTensor.from_row_lengths(
            tf.reshape(sparse.indices[:, 1:], [-1]), lengths * len(self.shape), validate=False
        )
        counts, places, contents = self.columns
        return Packed(
            (
                counts.pack(tf.cast(lengths, _LENGTH)[:, tf.newaxis]),
                places.pack(indices),
                contents.pack(values),
            ),
            contents.spoiled(values),
        )

    def take(self, arrays: Arrays, rows: tf.Tensor) -> Features:
        """Returns the feature as a sparse tensor [len(rows), *shape]."""
        counts, places, contents = self.columns
        lengths = counts.take(arrays[0], rows)[:, 0]
        rank = len(self.shape)
        inner = tf.reshape(places.take(arrays[1], rows, lengths * rank), [-1, rank])
        outer = tf.ragged.row_splits_to_segment_ids(_splits(lengths), out_type=tf.int64)
        dense_shape = tf.stack([tf.size(rows, tf.int64), *self.shape])
        return {
            self.key: tf.SparseTensor(
                tf.concat([outer[:, tf.newaxis], inner], axis=1),
                contents.take(arrays[2], rows, lengths),
                dense_shape,
            )
        }


@dataclass(frozen=True)
class RaggedPart:
    """One `tf.io.RaggedFeature` with partitions.

    Attributes:
        spec: the `tf.RaggedTensorSpec` that parsing yields.
    """

    key: str
    spec: Any
    separator: bytes

    @property
    def columns(self) -> tuple[Column, ...]:
        """The lengths of the rows at each level, and the values."""
        inner = [Varying(_LENGTH, self.separator)] * (self.spec.ragged_rank - 1)
        return (Fixed(_LENGTH, 1), *inner, Varying(self.spec.dtype, self.separator))

    def pack(self, parsed: Mapping[str, Any]) -> Packed:
        """Returns the arrays of the parsed feature."""
        feature = parsed[self.key]
        outer, *inner = (tf.cast(each, tf.int64) for each in feature.nested_row_lengths())
        packed = [(tf.cast(outer, _LENGTH)[:, tf.newaxis],)]
        counts = outer
        for column, lengths in zip(self.columns[1:], inner, strict=False):
            level = tf.RaggedTensor.from_row_lengths(lengths, counts, validate=False)
            packed.append(column.pack(tf.cast(level, _LENGTH)))
            counts = tf.reduce_sum(level, axis=1)
        values = tf.RaggedTensor.from_row_lengths(
            tf.reshape(feature.flat_values, [-1]), counts * self._value_size, validate=False
        )
        contents = self.columns[-1]
        assert isinstance(contents, Varying)
        return Packed((*packed, contents.pack(values)), contents.spoiled(values))

    def take(self, arrays: Arrays, rows: tf.Tensor) -> Features:
        """Returns the feature as a ragged tensor [len(rows), ...]."""
        outer, *inner, contents = self.columns
        counts = outer.take(arrays[0], rows)[:, 0]  # type: ignore[call-arg]
        nested = [counts]
        for column, stored in zip(inner, arrays[1:-1], strict=True):
            nested.append(column.take(stored, rows, counts))  # type: ignore[call-arg]
            level = tf.RaggedTensor.from_row_lengths(nested[-1], counts, validate=False)
            counts = tf.reduce_sum(level, axis=1)
        counts *= self._value_size
        values = contents.take(arrays[-1], rows, counts)  # type: ignore[call-arg]
        return {self.key: self._rebuild(values, nested)}

    @property
    def _value_shape(self) -> list[int]:
        return [int(size) for size in self.spec.shape[self.spec.ragged_rank + 1 :]]

    @property
    def _value_size(self) -> int:
        return int(np.prod(self._value_shape, dtype=int))

    def _rebuild(self, values: tf.Tensor, nested: Sequence[tf.Tensor]) -> tf.RaggedTensor:
        result = tf.reshape(values, [-1, *self._value_shape])
        for level in reversed(range(len(nested))):
            lengths = tf.cast(nested[level], self.spec.row_splits_dtype)
            uniform = self.spec.shape[level + 1]
            if uniform is None:
                result = tf.RaggedTensor.from_row_lengths(result, lengths, validate=False)
            else:
                result = tf.RaggedTensor.from_uniform_row_length(
                    result, tf.cast(uniform, lengths.dtype), nrows=tf.size(lengths, lengths.dtype)
                )
        return result


def _splits(lengths: tf.Tensor) -> tf.Tensor:
    return tf.concat([[0], tf.cumsum(tf.cast(lengths, tf.int64))], axis=0)
