"""Composite tensors in the form in which they travel through a dataset, for many batches at once.

Between two transformations `tf.data` holds a ragged tensor as one variant and a sparse one as three
(indices, values, shape), and turns them there and back in every function. One op that makes the
variants of many batches takes the place of several ops for each batch and feature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from generic_trainer.data._column import ranges

__all__ = ["encode_ragged", "encode_sparse", "sparse_indices"]


def sparse_indices(lengths: tf.Tensor) -> tf.Tensor:
    """Returns where the values of lists are, int64 [values, 1 + rank], one list after another.

    Args:
        lengths: of the lists, int64 [...] of this rank.
    """
    # One range over numbers that hold a whole index in their bits, the innermost in the lowest.
    sizes = [*tf.unstack(tf.shape(lengths, tf.int64)), tf.reduce_max(lengths) + 1]
    shifts = tf.cumsum([_bits(size) for size in sizes], reverse=True, exclusive=True)
    starts = tf.zeros_like(lengths)
    for axis, (size, shift) in enumerate(zip(sizes[:-1], tf.unstack(shifts), strict=False)):
        numbers = tf.bitwise.left_shift(tf.range(size), shift)
        starts += tf.reshape(numbers, [-1] + [1] * (lengths.shape.rank - 1 - axis))
    numbers = ranges(tf.reshape(starts, [-1]), tf.reshape(lengths, [-1]))
    columns = [
        tf.bitwise.bitwise_and(tf.bitwise.right_shift(numbers, shift), _mask(size))
        for size, shift in zip(sizes, tf.unstack(shifts), strict=True)
    ]
    return tf.transpose(tf.stack(columns))  # faster than stacking by row


def _bits(size: tf.Tensor) -> tf.Tensor:
    """Returns how many bits hold any number below a size."""
    return tf.cast(tf.math.ceil(tf.math.log(tf.cast(size, tf.float64)) / math.log(2)), tf.int64)


def _mask(size: tf.Tensor) -> tf.Tensor:
    return tf.bitwise.left_shift(tf.constant(1, tf.int64), _bits(size)) - 1


def encode_ragged(
    values: tf.Tensor, splits: Sequence[tf.Tensor], batch_size: tf.Tensor
) -> tf.Tensor:
    """Returns the ragged tensors of batches, variant [batches].

    Args:
        values: flat values of all batches.
        splits: row splits at each level, the first those of all rows.
        batch_size: rows in a batch.
    """
    rows = tf.size(splits[0], splits[0].dtype) - 1
    outer = tf.range(0, rows + 1, tf.cast(batch_size, rows.dtype))
    return tf.raw_ops.RaggedTensorToVariant(
        rt_nested_splits=[outer, *splits], rt_dense_values=values, batched_input=True
    )


def encode_sparse(indices: tf.Tensor, values: tf.Tensor, shapes: tf.Tensor) -> tf.Tensor:
    """Returns sparse tensors, variant [tensors, 3].

    Args:
        indices: int64 [values, 1 + rank], the first of which is the tensor that a value is in.
        values: of all tensors, one after another.
        shapes: dense shapes, int64 [tensors, rank].
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
