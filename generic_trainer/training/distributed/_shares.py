"""Division of batches: each worker trains on its share of the rows of every batch."""

import warnings
from typing import Any, NamedTuple

import tensorflow as tf

_OFF = tf.data.experimental.AutoShardPolicy.OFF


class Share(NamedTuple):
    """A worker's rows of a batch that all workers read; without any, a row of another worker.

    A worker without rows must run the step as well. With a row of the data its preprocessing can
    do what it does with any other; a made-up row could be a word that no vocabulary has.

    Attributes:
        batch: the rows, at least one if the whole batch has one.
        rows: int32 [], the number of those that are this worker's own.
    """

    batch: Any
    rows: Any


class OwnShare(NamedTuple):
    """A part of a batch that only this worker reads; see `Share`. All workers may lack rows."""

    batch: Any
    rows: Any


def share_of(
    dataset: tf.data.Dataset, rank: int, size: int, is_counted: bool = False
) -> tf.data.Dataset:
    """Returns a dataset with this worker's rows of each batch.

    1. Of a batch of B rows, worker r of n gets those from r B / n up to, but not including,
       (r + 1) B / n, both rounded down. Every row belongs to exactly one worker, even if B is not a
       multiple of n. If B is less than n, some workers get no rows.
    2. All workers must read the same batches in the same order.
    3. `AutoShardPolicy.OFF` declares that each worker reads separate data. Then each batch is split
       into n batches, and the worker trains on all of them.

    The rows are cut at the end of the input pipeline, so the position of an iterator is the same on
    all workers.

    Args:
        dataset: a dataset of batches; the first axis of all tensors of rank 1 and more is the rows.
        rank: the number of the worker.
        size: the number of workers.
        is_counted: whether the elements are to be a `Share` or `OwnShare` each, instead of the
            rows alone.
    """
    # `map` unpacks an element that is a tuple into arguments, also one of a single item.
    is_tuple = type(dataset.element_spec) is tuple

    def share(kind: type[Share] | type[OwnShare], batch: Any, part: Any) -> Any:
        if not is_counted:
            return share_of_rows(batch, part, size)
        start, end = _bounds(batch, part, size)
        return kind(_cut(batch, start, tf.maximum(end, start + 1)), tf.cast(end - start, tf.int32))

    if is_own(dataset):

        @tf.autograph.experimental.do_not_convert
        def cut(*batch: Any) -> tf.data.Dataset:
            parts = tf.data.Dataset.range(size, output_type=tf.int32)
            return parts.map(lambda part: share(OwnShare, batch if is_tuple else batch[0], part))

        return dataset.flat_map(cut)
    options = tf.data.Options()
    # A prefetch after the cut would put this worker's rows into the state of the iterator.
    options.experimental_optimization.inject_prefetch = False
    options.deterministic = True  # all workers need the same order
    own = tf.autograph.experimental.do_not_convert(
        lambda *batch: share(Share, batch if is_tuple else batch[0], rank)
    )
    return dataset.prefetch(tf.data.AUTOTUNE).map(own).with_options(options)


def is_own(data: Any) -> bool:
    """Returns whether data are a dataset that, by its sharding policy, only this worker reads."""
    if not isinstance(data, tf.data.Dataset):
        return False
    return bool(options_of(data).experimental_distribute.auto_shard_policy == _OFF)


def options_of(dataset: Any) -> tf.data.Options:
    """Returns the options of a dataset."""
    with warnings.catch_warnings():
        # In a graph, TensorFlow warns that the options may have been changed.
        warnings.simplefilter("ignore", UserWarning)
        return dataset.options()


def without_length(data: Any) -> Any:
    """Removes the known length from a dataset that only this worker reads; see `is_own`.

    `share_of` splits each of its batches, so the new dataset has more of them. Keras would stop
    after the original number. Other data are returned unchanged.
    """
    return data.filter(lambda *batch: True) if is_own(data) else data


def number_of_rows(structure: Any) -> Any:
    """Returns the number of rows of a batch: an int if known when tracing, else int32 []."""
    for tensor in tf.nest.flatten(structure, expand_composites=False):
        if not _has_rows(tensor):
            continue
        known = tf.compat.dimension_value(tensor.shape[0])
        return tf.cast(tf.shape(tensor)[0], tf.int32) if known is None else int(known)
    return 1


def at_least_a_row(structure: Any, rows: Any) -> Any:
    """Returns the batch, or a row of zeros if it is empty.

    A worker without rows must run the step as well, because the others wait for its collectives,
    but the mean over an empty batch is NaN. Its result gets weight 0; see `average_gradients`.

    Args:
        structure: a batch; values that are not tensors are returned unchanged.
        rows: the number of rows, as returned by `number_of_rows`.
    """
    if isinstance(rows, int) and rows:
        return structure
    flat = tf.nest.flatten(structure, expand_composites=False)
    tensors = [value for value in flat if tf.is_tensor(value)]
    filled = iter(tf.cond(tf.equal(rows, 0), lambda: [*map(_one_row, tensors)], lambda: tensors))
    flat = [next(filled) if tf.is_tensor(value) else value for value in flat]
    return tf.nest.pack_sequence_as(structure, flat, expand_composites=False)


def share_of_rows(batch: Any, part: Any, size: int) -> Any:
    """Returns part number `part` of a batch whose rows are split into `size` parts."""
    return _cut(batch, *_bounds(batch, part, size))


def rows_of(share: Share | OwnShare) -> Any:
    """Returns the rows of a share that are this worker's own."""
    return _cut(share.batch, 0, share.rows)


def _bounds(batch: Any, part: Any, size: int) -> tuple[Any, Any]:
    """Returns the numbers of the first row of a part of a batch, and of the first one after it."""
    count = number_of_rows(batch)
    return part * count // size, (part + 1) * count // size


def _cut(batch: Any, start: Any, end: Any) -> Any:
    def cut(tensor: Any) -> Any:
        if not _has_rows(tensor):
            return tensor
        if isinstance(tensor, tf.SparseTensor):
            begin = tf.one_hot(0, tensor.shape.rank, tf.cast(start, tf.int64), dtype=tf.int64)
            lengths = tf.concat([[tf.cast(end - start, tf.int64)], tensor.dense_shape[1:]], 0)
            return tf.sparse.slice(tensor, begin, lengths)
        return tensor[start:end]

    return tf.nest.map_structure(cut, batch, expand_composites=False)


def _has_rows(value: Any) -> bool:
    is_tensor = isinstance(value, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor))
    return is_tensor and value.shape.rank != 0


def _one_row(value: Any) -> Any:
    """Returns an empty tensor with a row of zeros or empty strings; a scalar as it is."""
    if not _has_rows(value):
        return value
    if isinstance(value, tf.SparseTensor):
        shape = tf.concat([tf.ones([1], tf.int64), value.dense_shape[1:]], 0)
        return tf.SparseTensor(value.indices, value.values, shape)
    if isinstance(value, tf.RaggedTensor):
        return tf.RaggedTensor.from_row_lengths(value.values, [0])
    return tf.zeros(tf.concat([[1], tf.shape(value)[1:]], 0), value.dtype)
