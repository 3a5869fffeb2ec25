"""The parts of a layout: which features share which columns, and the way there and back.

A part packs parsed features into columns and takes features of chosen rows out of them. Features of
one kind and type share a column, because a batch then costs a few gathers and not one per feature.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from generic_trainer.data._column import Column, Fixed, Varying

__all__ = ["DensePart", "GroupPart", "Packed", "Part"]

Features = dict[str, Any]
Arrays = Sequence[Sequence[tf.Tensor]]
_LENGTH = tf.int32


@dataclass(frozen=True)
class Packed:
    """What a part makes of a block of records: arrays per column, and whether they are good."""

    arrays: tuple[tuple[tf.Tensor, ...], ...]
    spoiled: tf.Tensor


class Part(Protocol):
    """Some features, stored together."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that hold the features."""

    def pack(self, parsed: Mapping[str, Any]) -> Packed:
        """Returns the arrays of parsed features."""

    def take(self, arrays: Arrays, rows: tf.Tensor) -> Features:
        """Returns the features of chosen rows, from the arrays of each column."""


@dataclass(frozen=True)
class DensePart:
    """All dense features of one type.

    Attributes:
        shapes: feature → shape of one example.
    """

    dtype: tf.DType
    shapes: Mapping[str, tuple[int, ...]]
    separator: bytes

    @property
    def columns(self) -> tuple[Column, ...]:
        """One column, the features side by side."""
        if self.dtype == tf.string:
            return (Varying(self.dtype, self.separator),)
        return (Fixed(self.dtype, self._width),)

    def pack(self, parsed: Mapping[str, Any]) -> Packed:
        """Returns the arrays of parsed features."""
        flat = [tf.reshape(parsed[key], [-1, size]) for key, size in self._sizes()]
        values = tf.concat(flat, axis=1)
        column = self.columns[0]
        if isinstance(column, Fixed):
            return Packed((column.pack(values),), tf.constant(False))
        ragged = tf.RaggedTensor.from_uniform_row_length(
            tf.reshape(values, [-1]), self._width, nrows=tf.shape(values, tf.int64)[0]
        )
        return Packed((column.pack(ragged),), column.spoiled(ragged))

    def take(self, arrays: Arrays, rows: tf.Tensor) -> Features:
        """Returns the features [len(rows), *shape]."""
        column = self.columns[0]
        if isinstance(column, Fixed):
            values = column.take(arrays[0], rows)
        else:
            values = column.take(arrays[0], rows, tf.fill(tf.shape(rows), self._width))
            values = tf.reshape(values, [-1, self._width])
        return dict(self._cut(values))

    @property
    def _width(self) -> int:
        return sum(size for _, size in self._sizes())

    def _sizes(self) -> list[tuple[str, int]]:
        return [(key, int(np.prod(shape, dtype=int))) for key, shape in self.shapes.items()]

    def _cut(self, values: tf.Tensor) -> Iterator[tuple[str, tf.Tensor]]:
        if not any(self.shapes.values()):  # scalars only, the common case: one op for all
            yield from zip(self.shapes, tf.unstack(values, axis=1), strict=True)
            return
        sizes = self._sizes()
        pieces = tf.split(values, [size for _, size in sizes], axis=1)
        for (key, _), piece in zip(sizes, pieces, strict=True):
            yield key, tf.reshape(piece, [-1, *self.shapes[key]])


@dataclass(frozen=True)
class GroupPart:
    """All features of one type that are a list per example: `VarLenFeature` and simple ragged ones.

    Attributes:
        splits_dtypes: feature → type of the row splits of a ragged tensor; None: a sparse tensor.
    """

    dtype: tf.DType
    splits_dtypes: Mapping[str, tf.DType | None]
    separator: bytes

    @property
    def columns(self) -> tuple[Column, ...]:
        """The lengths of all lists, and the values: row by row, feature by feature."""
        return Fixed(_LENGTH, len(self.splits_dtypes)), Varying(self.dtype, self.separator)

    def pack(self, parsed: Mapping[str, Any]) -> Packed:
        """Returns the arrays of parsed features."""
        lists = [_as_ragged(parsed[key]) for key in self.splits_dtypes]
        lengths = tf.stack([tf.cast(each.row_lengths(), _LENGTH) for each in lists], axis=1)
        values = tf.concat(lists, axis=1) if len(lists) > 1 else lists[0]
        _, column = self.columns
        packed = (lengths,), column.pack(values)
        return Packed(packed, column.spoiled(values))  # type: ignore[union-attr, arg-type]

    def take(self, arrays: Arrays, rows: tf.Tensor) -> Features:
        """Returns the features, sparse or ragged [len(rows), (length)]."""
        first, second = self.columns
        lengths = first.take(arrays[0], rows)  # type: ignore[call-arg]
        counts = tf.reduce_sum(lengths, axis=1)
        values = second.take(arrays[1], rows, counts)  # type: ignore[call-arg]
        sparse = self._sparse(values, lengths)
        splits = tf.unstack(tf.pad(tf.cumsum(lengths), [[1, 0], [0, 0]]), axis=1)
        return {
            key: sparse[place]
            if splits_dtype is None
            else tf.RaggedTensor.from_row_splits(
                sparse[place].values, tf.cast(splits[place], splits_dtype), validate=False
            )
            for place, (key, splits_dtype) in enumerate(self.splits_dtypes.items())
        }

    def _sparse(self, values: tf.Tensor, lengths: tf.Tensor) -> list[tf.SparseTensor]:
        """Returns each feature as a sparse tensor [rows, longest list].

        Computed for all features at once: hundreds of small ops cost more than their work.
        """
        number = len(self.splits_dtypes)
        flat = tf.reshape(lengths, [-1])  # one cell for each row and feature
        places = tf.raw_ops.RaggedRange(
            starts=tf.zeros_like(flat), limits=flat, deltas=tf.constant(1, _LENGTH)
        ).rt_dense_values
        filled = tf.where(flat > 0)[:, 0]
        cells = tf.gather(filled, tf.cumsum(tf.cast(tf.equal(places, 0), tf.int32)) - 1)
        indices = tf.stack([cells // number, tf.cast(places, tf.int64)], axis=1)
        features = tf.cast(cells % number, tf.int32)
        longest = tf.unstack(tf.cast(tf.reduce_max(lengths, axis=0), tf.int64), num=number)
        rows = tf.shape(lengths, tf.int64)[0] if lengths.shape[0] is None else lengths.shape[0]
        return [
            tf.SparseTensor(each_indices, each_values, tf.stack([rows, each_longest]))
            for each_indices, each_values, each_longest in zip(
                tf.dynamic_partition(indices, features, number),
                tf.dynamic_partition(values, features, number),
                longest,
                strict=True,
            )
        ]


def _as_ragged(lists: Any) -> tf.RaggedTensor:
    if isinstance(lists, tf.RaggedTensor):
        return (
            lists if lists.row_splits.dtype == tf.int64 else lists.with_row_splits_dtype(tf.int64)
        )
    rows = lists.indices[:, 0]
    return tf.RaggedTensor.from_value_rowids(
        lists.values, rows, nrows=lists.dense_shape[0], validate=False
    )
