"""Features with any number of values per example: lists, sparse and ragged tensors.

Their parts of a layout (see `_layout`) hold how many values a row has, what is known of their order
within it, and the values.

Taken out again, they are in the form in which composite tensors travel through a dataset, for many
batches at once. Between two transformations `tf.data` holds a ragged tensor as one variant and a
sparse one as three (indices, values, shape), and turns them there and back in every function. One
op that makes the variants of many batches takes the place of several ops for each batch and
feature.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from generic_trainer.data._columns import (
    Arrays,
    Features,
    Fixed,
    Rows,
    Varying,
    gather,
    lengths_of,
    ranges,
    splits_of,
)

_LENGTH = tf.int32


@dataclass(frozen=True)
class ListPart:
    """The `Part` of all `VarLenFeature`s of one type, or of all simple ragged features of one.

    Attributes:
        keys: the features.
        splits_dtype: type of the row splits of ragged tensors; None: sparse tensors.
        separator: see `Varying`.
    """

    dtype: tf.DType
    keys: tuple[str, ...]
    splits_dtype: tf.DType | None
    separator: bytes | None

    @property
    def columns(self) -> tuple[Fixed, Varying]:
        """The lengths of all lists, and the values: row by row, feature by feature."""
        return Fixed(_LENGTH, len(self.keys)), Varying(self.dtype, self.separator)

    def pack(self, parsed: Mapping[str, Any]) -> tuple[tf.Tensor, Rows]:
        lists = [parsed[key] for key in self.keys]
        splits = tf.cast(tf.stack([each.row_splits for each in lists]), _LENGTH)
        starts = splits[:, :-1]
        lengths = tf.transpose(splits[:, 1:] - starts)
        starts += tf.cumsum(splits[:, -1:], exclusive=True)  # of each feature, one behind another
        order = ranges(tf.reshape(tf.transpose(starts), [-1]), tf.reshape(lengths, [-1]))
        values = gather(tf.concat([each.flat_values for each in lists], axis=0), order)
        return lengths, Rows(values, tf.cast(tf.reduce_sum(lengths, axis=1), tf.int64))

    def take(self, arrays: Arrays, rows: tf.Tensor) -> Features:
        first, second = self.columns
        flat_rows = tf.reshape(rows, [-1])
        # Feature by feature, row by row.
        lengths = tf.cast(tf.transpose(first.take(arrays[0], flat_rows)), tf.int64)
        source, starts = second.source(arrays[1], flat_rows, tf.reduce_sum(lengths, axis=0))
        starts += tf.cumsum(lengths, exclusive=True)
        cells = tf.reshape(lengths, [-1])
        indices = ranges(tf.reshape(starts, [-1]), cells)
        values = second.read(arrays[1], source, indices)
        batches, size = tf.unstack(tf.shape(rows, tf.int64))
        if self.splits_dtype is None:
            return self._sparse(values, cells, batches, size)
        return self._ragged(values, lengths, size)

    def _sparse(
        self, values: tf.Tensor, cells: tf.Tensor, batches: tf.Tensor, size: tf.Tensor
    ) -> Features:
        lengths = tf.reshape(cells, tf.stack([len(self.keys) * batches, size]))
        longest = tf.reduce_max(lengths, axis=1)
        shapes = tf.stack([tf.fill(tf.shape(longest), size), longest], axis=1)
        encoded = _encode_sparse(_sparse_indices(cells, size), values, shapes)
        by_feature = tf.reshape(encoded, tf.stack([len(self.keys), batches, 3]))
        return dict(zip(self.keys, tf.unstack(by_feature), strict=True))

    def _ragged(self, values: tf.Tensor, lengths: tf.Tensor, batch_size: tf.Tensor) -> Features:
        sizes = tf.reduce_sum(lengths, axis=1)
        splits = tf.pad(tf.cumsum(tf.cast(lengths, self.splits_dtype), axis=1), [[0, 0], [1, 0]])
        return {
            key: _encode_ragged(feature_values, [feature_splits], batch_size)
            for key, feature_values, feature_splits in zip(
                self.keys,
                tf.split(values, sizes, num=len(self.keys)),
                tf.unstack(splits),
                strict=True,
            )
        }


@dataclass(frozen=True)
class SparsePart:
    """The `Part` of one `tf.io.SparseFeature`.

    Attributes:
        shape: dense shape of one example.
        separator: see `Varying`.
    """

    key: str
    dtype: tf.DType
    shape: tuple[int, ...]
    separator: bytes | None

    @property
    def columns(self) -> tuple[Fixed, Varying, Varying]:
        """Number of values in a row, their indices within it, and the values."""
        return Fixed(_LENGTH, 1), Varying(tf.int64, None), Varying(self.dtype, self.separator)

    def pack(self, parsed: Mapping[str, Any]) -> tuple[Any, ...]:
        sparse = parsed[self.key]
        lengths = lengths_of(row_splits(sparse.indices[:, 0], sparse.dense_shape[0]))
        indices = tf.reshape(sparse.indices[:, 1:], [-1])
        return (
            tf.cast(tf.expand_dims(lengths, 1), _LENGTH),
            Rows(indices, lengths * len(self.shape)),
            Rows(sparse.values, lengths),
        )

    def take(self, arrays: Arrays, rows: tf.Tensor) -> Features:
        counts, indices, values = self.columns
        flat_rows = tf.reshape(rows, [-1])
        batches, size = tf.unstack(tf.shape(rows, tf.int64))
        lengths = tf.cast(counts.take(arrays[0], flat_rows)[:, 0], tf.int64)
        rank = len(self.shape)
        inner = tf.reshape(indices.take(arrays[1], flat_rows, lengths * rank), [-1, rank])
        outer = _sparse_indices(lengths, size)[:, :2]
        encoded = _encode_sparse(
            tf.concat([outer, inner], axis=1),
            values.take(arrays[2], flat_rows, lengths),
            tf.tile([tf.stack([size, *self.shape])], tf.stack([batches, 1])),
        )
        return {self.key: encoded}


@dataclass(frozen=True)
class RaggedPart:
    """The `Part` of one `tf.io.RaggedFeature` with partitions.

    Attributes:
        spec: the `tf.RaggedTensorSpec` that parsing yields.
        separator: see `Varying`.
    """

    key: str
    spec: Any
    separator: bytes | None

    @property
    def columns(self) -> tuple[Any, ...]:
        """The lengths of the rows at each level, and the values."""
        inner = [Varying(_LENGTH, None)] * (self.spec.ragged_rank - 1)
        return Fixed(_LENGTH, 1), *inner, Varying(self.spec.dtype, self.separator)

    def pack(self, parsed: Mapping[str, Any]) -> list[Any]:
        feature = parsed[self.key]
        # Where each row starts among the values of a level, the outermost first.
        rows, *inner = (tf.cast(each, tf.int64) for each in feature.nested_row_splits)
        counts = lengths_of(rows)
        packed: list[Any] = [tf.cast(tf.expand_dims(counts, 1), _LENGTH)]
        for splits in inner:
            packed.append(Rows(tf.cast(lengths_of(splits), _LENGTH), counts))
            rows = gather(splits, rows)
            counts = lengths_of(rows)
        values = tf.reshape(feature.flat_values, [-1])
        return [*packed, Rows(values, counts * self._value_size)]

    def take(self, arrays: Arrays, rows: tf.Tensor) -> Features:
        outer, *inner, last = self.columns
        flat_rows = tf.reshape(rows, [-1])
        counts = tf.cast(tf.reshape(outer.take(arrays[0], flat_rows), [-1]), tf.int64)
        starts = splits_of(counts)
        nested = [starts]
        for column, stored in zip(inner, arrays[1:-1], strict=True):
            lengths = column.take(stored, flat_rows, counts)
            nested.append(splits_of(tf.cast(lengths, tf.int64)))
            starts = gather(nested[-1], starts)
            counts = lengths_of(starts)
        values = last.take(arrays[-1], flat_rows, counts * self._value_size)
        splits = [tf.cast(each, self.spec.row_splits_dtype) for each in nested]
        shaped = tf.reshape(values, [-1, *self._value_shape])
        return {self.key: _encode_ragged(shaped, splits, tf.shape(rows, tf.int64)[1])}

    @property
    def _value_shape(self) -> list[int]:
        return [int(size) for size in self.spec.shape[self.spec.ragged_rank + 1 :]]

    @property
    def _value_size(self) -> int:
        return math.prod(self._value_shape)


def row_splits(rows: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """Returns where each of `number` rows starts, and the end, by the row of each value, sorted."""
    starts = tf.raw_ops.LowerBound(
        sorted_inputs=tf.expand_dims(rows, 0),
        values=tf.expand_dims(tf.range(number + 1), 0),
        out_type=tf.int64,
    )
    return tf.reshape(starts, [-1])


def _sparse_indices(lengths: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns where the values of lists of these lengths, int64 [tensors * size], are.

    The indices are int64 [values, 3], tensor, row and place, one list after another.
    """
    splits = splits_of(lengths)
    tensors = tf.range(0, tf.size(lengths, tf.int64) + 1, size)
    return tf.raw_ops.RaggedTensorToSparse(
        rt_nested_splits=[tensors, splits], rt_dense_values=tf.range(splits[-1])
    ).sparse_indices


def _encode_ragged(
    values: tf.Tensor, splits: Sequence[tf.Tensor], batch_size: tf.Tensor
) -> tf.Tensor:
    """Returns the ragged tensors of batches, variant [batches]; `splits` are those of all rows."""
    rows = tf.size(splits[0], splits[0].dtype) - 1
    outer = tf.range(0, rows + 1, tf.cast(batch_size, rows.dtype))
    return tf.raw_ops.RaggedTensorToVariant(
        rt_nested_splits=[outer, *splits], rt_dense_values=values, batched_input=True
    )


def _encode_sparse(indices: tf.Tensor, values: tf.Tensor, shapes: tf.Tensor) -> tf.Tensor:
    """Returns sparse tensors, variant [tensors, 3], of these dense shapes, int64 [tensors, rank].

    The first index of each value is the tensor that it is in.
    """
    own_shape = tf.shape(shapes, tf.int64)
    most = tf.concat([own_shape[:1], tf.reduce_max(shapes, axis=0)], axis=0)
    serialized = _serialize(indices, values, most)
    # Its shapes are all the same one. No op makes a variant of each row of a matrix, except as the
    # values of sparse tensors.
    own = _serialize(
        tf.where(tf.ones_like(shapes, tf.bool)),  # of each of its cells
        tf.reshape(shapes, [-1]),
        own_shape,
    )
    return tf.stack([serialized[:, 0], serialized[:, 1], own[:, 1]], axis=1)


def _serialize(indices: tf.Tensor, values: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.SerializeManySparse(
        sparse_indices=indices, sparse_values=values, sparse_shape=shape, out_type=tf.variant
    )
