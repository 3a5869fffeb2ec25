"""Features with inner structure: `SparseFeature`s and ragged features with partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer.data._column import Block, Column, Fixed, Varying
from generic_trainer.data._encode import encode_ragged, encode_sparse, sparse_indices
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
    separator: bytes | None

    @property
    def columns(self) -> tuple[Fixed, Varying, Varying]:
        """Number of values in a row, their indices within it, and the values."""
        return (
            Fixed(_LENGTH, 1),
            Varying(tf.int64, self.separator),
            Varying(self.dtype, self.separator),
        )

    def pack(self, parsed: Mapping[str, Any]) -> Packed:
        """See `Part`."""
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
        """See `Part`."""
        counts, places, contents = self.columns
        flat_rows, batches = tf.reshape(rows, [-1]), tf.shape(rows, tf.int64)
        lengths = tf.cast(counts.take(arrays[0], flat_rows)[:, 0], tf.int64)
        rank = len(self.shape)
        inner = tf.reshape(places.take(arrays[1], flat_rows, lengths * rank), [-1, rank])
        outer = sparse_indices(tf.reshape(lengths, batches))[:, :2]
        encoded = encode_sparse(
            tf.concat([outer, inner], axis=1),
            contents.take(arrays[2], flat_rows, lengths),
            tf.tile([tf.stack([batches[1], *self.shape])], tf.stack([batches[0], 1])),
        )
        return {self.key: encoded}


@dataclass(frozen=True)
class RaggedPart:
    """One `tf.io.RaggedFeature` with partitions.

    Attributes:
        spec: the `tf.RaggedTensorSpec` that parsing yields.
    """

    key: str
    spec: Any
    separator: bytes | None

    @property
    def columns(self) -> tuple[Column, ...]:
        """The lengths of the rows at each level, and the values."""
        inner = [Varying(_LENGTH, self.separator)] * (self.spec.ragged_rank - 1)
        return (Fixed(_LENGTH, 1), *inner, Varying(self.spec.dtype, self.separator))

    def pack(self, parsed: Mapping[str, Any]) -> Packed:
        """See `Part`."""
        feature = parsed[self.key]
        outer, *inner = (tf.cast(each, tf.int64) for each in feature.nested_row_lengths())
        packed: list[tuple[Block, ...]] = [(tf.cast(outer, _LENGTH)[:, tf.newaxis],)]
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
        """See `Part`."""
        outer, *inner, contents = self.columns
        flat_rows = tf.reshape(rows, [-1])
        counts = tf.cast(outer.take(arrays[0], flat_rows)[:, 0], tf.int64)  # type: ignore[call-arg]
        nested = [counts]
        for column, stored in zip(inner, arrays[1:-1], strict=True):
            level = column.take(stored, flat_rows, counts)  # type: ignore[call-arg]
            nested.append(tf.cast(level, tf.int64))
            counts = _sums(nested[-1], counts)
        counts *= self._value_size
        values = contents.take(arrays[-1], flat_rows, counts)  # type: ignore[call-arg]
        splits = [tf.cast(_splits(each), self.spec.row_splits_dtype) for each in nested]
        shaped = tf.reshape(values, [-1, *self._value_shape])
        return {self.key: encode_ragged(shaped, splits, tf.shape(rows)[1])}

    @property
    def _value_shape(self) -> list[int]:
        return [int(size) for size in self.spec.shape[self.spec.ragged_rank + 1 :]]

    @property
    def _value_size(self) -> int:
        return int(np.prod(self._value_shape, dtype=int))


def _splits(lengths: tf.Tensor) -> tf.Tensor:
    return tf.concat([[0], tf.cumsum(lengths)], axis=0)


def _sums(lengths: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Returns the sum of the lengths in each row, `counts` many one after another."""
    ends = tf.gather(_splits(lengths), _splits(counts))
    return ends[1:] - ends[:-1]
