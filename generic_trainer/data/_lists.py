"""Features with any number of values per example: lists, sparse and ragged tensors.

Their parts of a layout (see `_layout`) store the number of values of each row, their structure
within the row (indices, or lengths of inner lists), and the values themselves.

The methods `take` gather many batches at once, and return them in the encoding that `tf.data` uses
between two transformations: a ragged tensor is one variant scalar, a sparse tensor is a vector of
three variants (indices, values, shape). A function of a dataset that returns a `tf.SparseTensor`
encodes it by several ops, for each batch and feature. The raw ops at the end of this file encode
all batches of all features of one type by one op; `_datasets._cut` then only has to split a tensor
of variants, which copies pointers.

Three words recur. A *cell* is the list of one feature in one row. *Lengths* are the numbers of
values of cells; *splits* are their cumulative sums from 0 on, so that cell c has the values from
splits[c] to splits[c + 1]. Cells are ordered "feature by feature" (all rows of the first feature
first, as TensorFlow wants them) or "row by row" (all features of the first row first, as they are
stored: the values of a row are side by side, and gathering a row touches one place).
"""

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
        """The lengths of all cells, [rows, features], and the values, row by row."""
        return Fixed(_LENGTH, len(self.keys)), Varying(self.dtype, self.separator)

    def pack(self, parsed: Mapping[str, Any]) -> tuple[tf.Tensor, Rows]:
        """Transposes the cells: they are parsed feature by feature, and stored row by row.

        `starts[feature, row]` is the start of a cell among the values of all features. Starts and
        lengths, transposed, are those of the cells in the order of storage; `ranges` turns them
        into the index of every value, and one gather moves all values.
        """
        lists = [parsed[key] for key in self.keys]
        splits = tf.cast(tf.stack([tensor.row_splits for tensor in lists]), _LENGTH)
        starts = splits[:, :-1]
        lengths = tf.transpose(splits[:, 1:] - starts)
        # The splits of each feature count from 0; its values follow those of the features before.
        starts += tf.cumsum(splits[:, -1:], exclusive=True)
        order = ranges(tf.reshape(tf.transpose(starts), [-1]), tf.reshape(lengths, [-1]))
        values = gather(tf.concat([tensor.flat_values for tensor in lists], axis=0), order)
        return lengths, Rows(values, tf.cast(tf.reduce_sum(lengths, axis=1), tf.int64))

    def take(self, arrays: Arrays, rows: tf.Tensor) -> Features:
        """Transposes the cells of the rows back, from row by row to feature by feature.

        Within a row, a cell starts where the cells of the features before it end: a cumulative sum
        over the features gives the starts of all cells from those of the rows.
        """
        first, second = self.columns
        flat_rows = tf.reshape(rows, [-1])
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
        # The encoded tensors are feature by feature too, each with all its batches.
        by_feature = tf.reshape(encoded, tf.stack([len(self.keys), batches, 3]))
        return dict(zip(self.keys, tf.unstack(by_feature), strict=True))

    def _ragged(self, values: tf.Tensor, lengths: tf.Tensor, batch_size: tf.Tensor) -> Features:
        # The op for ragged tensors returns a single tensor's batches, so it is called per feature.
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
        # The parser has merged the rows into one tensor, sorted by row: count the values of each.
        rows = tf.range(sparse.dense_shape[0] + 1)
        lengths = lengths_of(tf.searchsorted(sparse.indices[:, 0], rows, out_type=tf.int64))
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
        # Batch and row of a value follow from the lengths; its indices within the row are stored.
        outer = _sparse_indices(lengths, size)[:, :2]
        encoded = _encode_sparse(
            tf.concat([outer, inner], axis=1),
            values.take(arrays[2], flat_rows, lengths),
            tf.tile([tf.stack([size, *self.shape])], tf.stack([batches, 1])),
        )
        return {self.key: encoded}


@dataclass(frozen=True)
class RaggedPart:
    """The `Part` of one `tf.io.RaggedFeature` with partitions: lists of lists, to any depth.

    A ragged tensor has splits for each level: those of the outermost say which lists belong to a
    row, the next ones which lists belong to those, and the last ones which values. Stored are, for
    each row, the number of its lists at the first level, then the lengths of its lists level by
    level, then its values.

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
        # `rows`: where each row of the batch starts among the lists of the current level. Level by
        # level it is followed through the splits: rows of lists → rows of their lists → of values.
        rows, *inner = (tf.cast(level, tf.int64) for level in feature.nested_row_splits)
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
        # The same walk, with splits that are cumulative sums of the lengths that were gathered.
        starts = splits_of(counts)
        nested = [starts]
        for column, stored in zip(inner, arrays[1:-1], strict=True):
            lengths = column.take(stored, flat_rows, counts)
            nested.append(splits_of(tf.cast(lengths, tf.int64)))
            starts = gather(nested[-1], starts)
            counts = lengths_of(starts)
        values = last.take(arrays[-1], flat_rows, counts * self._value_size)
        splits = [tf.cast(level, self.spec.row_splits_dtype) for level in nested]
        shaped = tf.reshape(values, [-1, *self._value_shape])
        return {self.key: _encode_ragged(shaped, splits, tf.shape(rows, tf.int64)[1])}

    @property
    def _value_shape(self) -> list[int]:
        return [int(size) for size in self.spec.shape[self.spec.ragged_rank + 1 :]]

    @property
    def _value_size(self) -> int:
        return math.prod(self._value_shape)


def lengths_of(splits: tf.Tensor) -> tf.Tensor:
    """Returns the lengths of rows that start, and end, at these splits."""
    return splits[1:] - splits[:-1]


def _sparse_indices(lengths: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns the indices of all values of cells with these lengths, int64 [tensors * size].

    The indices are int64 [values, 3]: tensor, row of the tensor, and place in the cell. As a ragged
    tensor with two levels (tensors of rows of values) the cells have exactly these indices, and an
    op of TensorFlow computes them.
    """
    splits = splits_of(lengths)
    tensors = tf.range(0, tf.size(lengths, tf.int64) + 1, size)
    return tf.raw_ops.RaggedTensorToSparse(
        rt_nested_splits=[tensors, splits], rt_dense_values=tf.range(splits[-1])
    ).sparse_indices


def _encode_ragged(
    values: tf.Tensor, splits: Sequence[tf.Tensor], batch_size: tf.Tensor
) -> tf.Tensor:
    """Returns the ragged tensors of batches, variant [batches].

    `splits` are those of all rows together. An outer level that has `batch_size` rows in each list
    makes a ragged tensor of batches, and the op with `batched_input` returns a variant for each.
    """
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
    # All tensors are the slices of one sparse tensor along its first dimension, and the op encodes
    # each slice as three variants. It gives all slices the same shape, though, that of the largest.
    serialized = _serialize(indices, values, most)
    # So the third variant is replaced. A variant with the vector `shapes[t]` is needed for each t,
    # and no op makes one for each row of a matrix, except the same one: as the *values* of the
    # slices of a sparse tensor that has every cell of the matrix.
    own = _serialize(
        tf.where(tf.ones_like(shapes, tf.bool)),  # the indices of every cell of the matrix
        tf.reshape(shapes, [-1]),
        own_shape,
    )
    return tf.stack([serialized[:, 0], serialized[:, 1], own[:, 1]], axis=1)


def _serialize(indices: tf.Tensor, values: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.SerializeManySparse(
        sparse_indices=indices, sparse_values=values, sparse_shape=shape, out_type=tf.variant
    )
