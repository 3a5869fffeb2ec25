"""A worker's share of the data: of each batch the rows that are its own."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_OFF = tf.data.experimental.AutoShardPolicy.OFF


def share_of(dataset: tf.data.Dataset, rank: int, size: int) -> tf.data.Dataset:
    """Returns a dataset of the rows that a worker has of each batch.

    1. Of a batch of B rows, worker r of n has those from r B / n to (r + 1) B / n. Together they
       are the batch, also where B is no multiple of n; where B is less, some have none.
    2. All workers must have the same batches in the same order.
    3. With `AutoShardPolicy.OFF`, which says that each worker has data of its own, a batch is cut
       into n batches and the worker trains on all of them.

    The rows are cut last, so that the position of an iterator is the same for all workers.

    Args:
        dataset: of batches: all its tensors of rank 1 and more have the rows first.
        rank: number of the worker.
        size: number of workers.
    """
    if is_own(dataset):

        @tf.autograph.experimental.do_not_convert
        def cut(*batch: Any) -> tf.data.Dataset:
            parts = tf.data.Dataset.range(size, output_type=tf.int32)
            return parts.map(lambda part: share_of_rows(_element(batch), part, size))

        return dataset.flat_map(cut)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # it would hold rows of one worker
    own = tf.autograph.experimental.do_not_convert(
        lambda *batch: share_of_rows(_element(batch), rank, size)
    )
    return dataset.prefetch(tf.data.AUTOTUNE).map(own).with_options(options)


def is_own(dataset: tf.data.Dataset) -> bool:
    """Returns whether a dataset is said to be data that this worker has of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # in a graph: somebody may have changed them
        policy = dataset.options().experimental_distribute.auto_shard_policy
    return bool(policy == _OFF)


def without_length(data: Any) -> Any:
    """Returns own data as a dataset whose length is not known; other data as they are.

    Keras asks for as many batches as there were before each of them is cut.
    """
    if not (isinstance(data, tf.data.Dataset) and is_own(data)):
        return data
    return data.filter(lambda *batch: True)


def number_of_rows(structure: Any) -> Any:
    """Returns how many rows a batch has: an int where that is known, else int32 []."""
    for each in tf.nest.flatten(structure, expand_composites=False):
        if not _has_rows(each):
            continue
        known = tf.compat.dimension_value(each.shape[0])
        if known is not None:
            return int(known)
        if isinstance(each, tf.RaggedTensor):
            return tf.cast(each.nrows(), tf.int32)
        if isinstance(each, tf.SparseTensor):
            return tf.cast(each.dense_shape[0], tf.int32)
        return tf.shape(each)[0]
    return 1


def at_least_a_row(structure: Any, rows: Any) -> Any:
    """Returns a batch that a model can be run on: the mean over no rows is no number.

    Args:
        structure: a batch; what is no tensor stays as it is.
        rows: their number, as `number_of_rows` returns it.
    """
    if isinstance(rows, int) and rows:
        return structure
    flat = tf.nest.flatten(structure, expand_composites=False)
    numbers = [number for number, each in enumerate(flat) if tf.is_tensor(each)]
    tensors = [flat[number] for number in numbers]
    filled = tf.cond(tf.equal(rows, 0), lambda: _with_a_row(tensors), lambda: tensors)
    for number, each in zip(numbers, filled, strict=True):
        flat[number] = each
    return tf.nest.pack_sequence_as(structure, flat, expand_composites=False)


def _with_a_row(structure: Any) -> Any:
    """Returns a batch of no rows with one of zeros and empty strings."""
    return tf.nest.map_structure(
        lambda each: _one_row(each) if _has_rows(each) else each,
        structure,
        expand_composites=False,
    )


def _element(batch: Sequence[Any]) -> Any:
    """Returns the element that `map` has unpacked where it was a tuple."""
    return batch if len(batch) > 1 else batch[0]


def share_of_rows(batch: Any, part: Any, size: int) -> Any:
    """Returns the rows of a batch from `part / size` of them to `(part + 1) / size`."""
    count = number_of_rows(batch)
    start, end = part * count // size, (part + 1) * count // size

    def cut(each: Any) -> Any:
        if not _has_rows(each):
            return each
        if isinstance(each, tf.SparseTensor):
            begin = tf.one_hot(0, each.shape.rank, tf.cast(start, tf.int64), tf.int64(0))
            lengths = tf.concat([[tf.cast(end - start, tf.int64)], each.dense_shape[1:]], 0)
            return tf.sparse.slice(each, begin, lengths)
        return each[start:end]

    return tf.nest.map_structure(cut, batch, expand_composites=False)


def _has_rows(value: Any) -> bool:
    is_tensor = isinstance(value, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor))
    return is_tensor and value.shape.rank != 0


def _one_row(value: Any) -> Any:
    if isinstance(value, tf.SparseTensor):
        shape = tf.concat([tf.ones([1], tf.int64), value.dense_shape[1:]], 0)
        return tf.SparseTensor(value.indices, value.values, shape)
    if isinstance(value, tf.RaggedTensor):
        return tf.RaggedTensor.from_row_lengths(value.values, [0])
    return tf.zeros(tf.concat([[1], tf.shape(value)[1:]], 0), value.dtype)
