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

from generic_trainer.data._columns import Arrays, Features, Fixed, Varying, ranges

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

    def pack(self, parsed: Mapping[str, Any]) -> tuple[tf.Tensor, tf.RaggedTensor]:
        lists = [parsed[key] for key in self.keys]
        lengths = tf.stack([tf.cast(each.row_lengths(), _LENGTH) for each in lists])
        starts = tf.cumsum(tf.reshape(lengths, [-1]), exclusive=True)
        by_row = tf.transpose(tf.reshape(starts, tf.shape(lengths)))
        lengths = tf.transpose(lengths)
        order = ranges(tf.reshape(by_row, [-1]), tf.reshape(lengths, [-1]))
        values = tf.RaggedTensor.from_row_lengths(
            tf.gather(tf.concat([each.flat_values for each in lists], axis=0), order),
            tf.reduce_sum(lengths, axis=1),
            validate=False,
        )
        return lengths, values

    def take(self, arrays: Arrays, rows: tf.Tensor) -> Features:
        first, second = self.columns
        flat_rows = tf.reshape(rows, [-1])
        lengths = tf.cast(first.take(arrays[0], flat_rows), tf.int64)
        source, starts = second.source(arrays[1], flat_rows, tf.reduce_sum(lengths, axis=1))
        starts = starts[:, tf.newaxis] + tf.cumsum(lengths, axis=1, exclusive=True)
        lengths = tf.transpose(lengths)  # from here on feature by feature, row by row
        cells = tf.reshape(lengths, [-1])
        indices = ranges(tf.reshape(tf.transpose(starts), [-1]), cells)
        values = second.read(arrays[1], source, indices)
        batches = tf.shape(rows, tf.int64)
        if self.splits_dtype is None:
            return self._sparse(values, cells, batches)
        return self._ragged(values, lengths, batches[1])

    def _sparse(self, values: tf.Tensor, cells: tf.Tensor, batches: tf.Tensor) -> Features:
        tensors = len(self.keys) * batches[0]
        lengths = tf.reshape(cells, tf.stack([tensors, batches[1]]))
        longest = tf.reduce_max(lengths, axis=1)
        shapes = tf.stack([tf.fill([tensors], batches[1]), longest], axis=1)
        encoded = _encode_sparse(_sparse_indices(lengths), values, shapes)
        by_feature = tf.reshape(encoded, tf.stack([len(self.keys), batches[0], 3]))
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
        values = tf.RaggedTensor.from_value_rowids(
            sparse.values, sparse.indices[:, 0], nrows=sparse.dense_shape[0], validate=False
        )
        lengths = values.row_lengths()
        indices = tf.RaggedTensor.from_row_lengths(
            tf.reshape(sparse.indices[:, 1:], [-1]), lengths * len(self.shape), validate=False
        )
        return tf.cast(lengths, _LENGTH)[:, tf.newaxis], indices, values

    def take(self, arrays: Arrays, rows: tf.Tensor) -> Features:
        counts, indices, values = self.columns
        flat_rows, batches = tf.reshape(rows, [-1]), tf.shape(rows, tf.int64)
        lengths = tf.cast(counts.take(arrays[0], flat_rows)[:, 0], tf.int64)
        rank = len(self.shape)
        inner = tf.reshape(indices.take(arrays[1], flat_rows, lengths * rank), [-1, rank])
        outer = _sparse_indices(tf.reshape(lengths, batches))[:, :2]
        encoded = _encode_sparse(
            tf.concat([outer, inner], axis=1),
            values.take(arrays[2], flat_rows, lengths),
            tf.tile([tf.stack([batches[1], *self.shape])], tf.stack([batches[0], 1])),
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
        counts, *inner = (tf.cast(each, tf.int64) for each in feature.nested_row_lengths())
        packed = [tf.cast(counts, _LENGTH)[:, tf.newaxis]]
        for lengths in inner:
            level = tf.RaggedTensor.from_row_lengths(lengths, counts, validate=False)
            packed.append(tf.cast(level, _LENGTH))
            counts = tf.reduce_sum(level, axis=1)
        values = tf.RaggedTensor.from_row_lengths(
            tf.reshape(feature.flat_values, [-1]), counts * self._value_size, validate=False
        )
        return [*packed, values]

    def take(self, arrays: Arrays, rows: tf.Tensor) -> Features:
        outer, *inner, last = self.columns
        flat_rows = tf.reshape(rows, [-1])
        counts = tf.cast(outer.take(arrays[0], flat_rows)[:, 0], tf.int64)
        nested = [counts]
        for column, stored in zip(inner, arrays[1:-1], strict=True):
            nested.append(tf.cast(column.take(stored, flat_rows, counts), tf.int64))
            counts = _sums(nested[-1], counts)
        values = last.take(arrays[-1], flat_rows, counts * self._value_size)
        splits = [tf.cast(_splits(each), self.spec.row_splits_dtype) for each in nested]
        shaped = tf.reshape(values, [-1, *self._value_shape])
        return {self.key: _encode_ragged(shaped, splits, tf.shape(rows)[1])}

    @property
    def _value_shape(self) -> list[int]:
        return [int(size) for size in self.spec.shape[self.spec.ragged_rank + 1 :]]

    @property
    def _value_size(self) -> int:
        return math.prod(self._value_shape)


def _splits(lengths: tf.Tensor) -> tf.Tensor:
    return tf.concat([[0], tf.cumsum(lengths)], axis=0)


def _sums(lengths: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Returns the sum of the lengths in each row, `counts` many one after another."""
    ends = tf.gather(_splits(lengths), _splits(counts))
    return ends[1:] - ends[:-1]


def _sparse_indices(lengths: tf.Tensor) -> tf.Tensor:
    """Returns where the values of lists of these lengths, int64 [...] of some rank, are.

    The indices are int64 [values, 1 + rank], one list after another.
    """
    # One range over numbers that hold a whole index in their bits, the innermost in the lowest.
    sizes = [*tf.unstack(tf.shape(lengths, tf.int64)), tf.reduce_max(lengths) + 1]
    bits = [_bits(size) for size in sizes]
    shifts = tf.unstack(tf.cumsum(bits, reverse=True, exclusive=True))
    starts = tf.zeros_like(lengths)
    for axis, (size, shift) in enumerate(zip(sizes[:-1], shifts, strict=False)):
        numbers = tf.bitwise.left_shift(tf.range(size), shift)
        starts += tf.reshape(numbers, [-1] + [1] * (lengths.shape.rank - 1 - axis))
    numbers = ranges(tf.reshape(starts, [-1]), tf.reshape(lengths, [-1]))
    one = tf.constant(1, tf.int64)
    columns = [
        tf.bitwise.right_shift(numbers, shift) & (tf.bitwise.left_shift(one, width) - 1)
        for width, shift in zip(bits, shifts, strict=True)
    ]
    return tf.transpose(tf.stack(columns))  # faster than stacking by row


def _bits(size: tf.Tensor) -> tf.Tensor:
    """Returns how many bits hold any number below a size."""
    return tf.cast(tf.math.ceil(tf.math.log(tf.cast(size, tf.float64)) / math.log(2)), tf.int64)


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
    number = tf.shape(shapes, tf.int64)[0]
    most = tf.concat([[number], tf.reduce_max(shapes, axis=0)], axis=0)
    serialized = _serialize(indices, values, most)
    # Its shapes are all the same one. No op makes a variant of each row of a matrix, except as the
    # values of sparse tensors.
    rank = shapes.shape[1]
    cells = tf.stack(tf.meshgrid(tf.range(number), tf.range(rank, dtype=tf.int64), indexing="ij"))
    own = _serialize(
        tf.reshape(tf.transpose(cells, [1, 2, 0]), [-1, 2]),
        tf.reshape(shapes, [-1]),
        tf.stack([number, rank]),
    )
    return tf.stack([serialized[:, 0], serialized[:, 1], own[:, 1]], axis=1)


def _serialize(indices: tf.Tensor, values: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.SerializeManySparse(
        sparse_indices=indices, sparse_values=values, sparse_shape=shape, out_type=tf.variant
    )
