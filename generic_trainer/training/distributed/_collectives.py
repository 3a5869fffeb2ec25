"""Tensors that all workers compute together: sums, averages of gradients, what one of them has.

Each function is called by all workers at the same place with tensors of the same types and shapes,
eagerly, within a `tf.function` or in a graph of TensorFlow 1. CPUs pass them on in a ring; where
each worker has a GPU of its own, numbers of floating point go by NCCL. A process on its own gets
back what it gave.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.texts import describe
from generic_trainer._core.values import unpickled_data
from generic_trainer.errors import ConfigurationError
from generic_trainer.training.distributed._ops import (
    gathered_rows,
    reduced_sum,
    sent_type,
    uncompiled,
)
from generic_trainer.training.distributed._runtime import Runtime, eager_mode, runtime
from generic_trainer.user_code import loaded_modules

# Tensors are put together up to this size: a ring of many small ones waits most of the time, and
# to put large ones together costs a copy and gains nothing.
_BUCKET_BYTES = 16 << 20
# Lengths that are sent together differ from call to call; they are rounded up to few.
_SMALLEST_LENGTH = 16

_agreed: set[str] = set()


@tf.autograph.experimental.do_not_convert
def all_reduce(values: Any) -> Any:
    """Returns the sum over all workers of each tensor of a structure.

    ::

        loss, correct, rows = distributed.all_reduce([loss * rows, correct, rows])

    Args:
        values: tensors, arrays and numbers of the same types and shapes on all workers, of any
            structure; `tf.IndexedSlices` may have another number of rows on each. None stays None.

    Returns:
        The same structure; of `tf.IndexedSlices`, the rows of all workers.

    Raises:
        ConfigurationError: another worker has other types or shapes.
    """
    connected = runtime()
    flat = tf.nest.flatten(values, expand_composites=False)
    flat = [each if _is_sparse(each) else _tensor(each) for each in flat]
    if connected is not None:
        flat = _sums(connected, flat)
    return tf.nest.pack_sequence_as(values, flat, expand_composites=False)


@tf.autograph.experimental.do_not_convert
def average_gradients(gradients: Any, *, rows: Any = None) -> Any:
    """Returns the gradients of the mean loss over the rows of all workers.

    ::

        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses(y, model(x)))     # over this worker's rows
        tape = distributed.average_gradients(tape, rows=tf.shape(x)[0])
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    1. With the number of rows, each worker counts as much as it has: the result is the gradient of
       the mean over all rows, also where the shares of a batch differ. Without, all count the same.
    2. A worker without rows counts nothing, whatever its gradients are.

    Args:
        gradients: a list of tensors, `tf.IndexedSlices` and None; or a `tf.GradientTape`, for one
            whose `gradient(target, sources)` returns such averages.
        rows: integer [], of the batch that this worker's loss is the mean of.

    Raises:
        ConfigurationError: another worker has gradients of other types or shapes.
    """
    if isinstance(gradients, tf.GradientTape):
        return _AveragingTape(gradients, rows)
    values = list(gradients)
    return weighted_means(values, 1 if rows is None else rows, [1.0] * len(values))


class _AveragingTape:
    """A tape whose gradients are averages."""

    def __init__(self, tape: tf.GradientTape, rows: Any) -> None:
        self._tape, self._rows = tape, rows

    def gradient(self, target: Any, sources: Any, **options: Any) -> Any:
        """Returns what the tape's own method returns, averaged."""
        gradients = self._tape.gradient(target, sources, **options)
        flat = tf.nest.flatten(gradients, expand_composites=False)
        averages = average_gradients(flat, rows=self._rows)
        return tf.nest.pack_sequence_as(gradients, averages, expand_composites=False)


def weighted_means(values: Sequence[Any], weight: Any, factors: Sequence[float]) -> list[Any]:
    """Returns the means over all workers of tensors and `tf.IndexedSlices`, times a factor each.

    Args:
        values: floating point; None stays None.
        weight: number [], how much this worker counts.
        factors: of the values.
    """
    connected = runtime()
    if connected is None:
        return list(values)
    return _sums(connected, values, tf.cast(weight, tf.float32), factors)


@tf.autograph.experimental.do_not_convert
def broadcast(values: Any, root: int = 0) -> Any:
    """Returns what one worker has: the tensors of a structure, in all workers.

    Args:
        values: see `all_reduce`, without `tf.IndexedSlices`.
        root: the rank of that worker.

    Raises:
        ConfigurationError: another worker has other types or shapes.
    """
    connected = runtime()
    if connected is None:
        return tf.nest.map_structure(_tensor, values)
    is_root = connected.rank == root
    return all_reduce(
        tf.nest.map_structure(
            lambda value: value if is_root or value is None else tf.zeros_like(value), values
        )
    )


def gather_rows(value: Any, axis: int = 0) -> tf.Tensor:
    """Returns the tensors of all workers one after another, along an axis that they differ in."""
    connected = runtime()
    tensor = tf.convert_to_tensor(value)
    if connected is None:
        return tensor
    order = [axis, *(each for each in range(tensor.shape.rank) if each != axis)]
    back = [order.index(each) for each in range(tensor.shape.rank)]
    (rows,), _ = _gathered(connected, [tf.transpose(tensor, order)])
    return tf.transpose(rows, back)


def gather(value: Any) -> list[Any]:
    """Returns what each worker has, by rank; at once, also where a graph is being built.

    Args:
        value: numbers, texts, bytes, arrays, containers of them, and objects of classes of the
            user's own modules, of whatever size; it may differ from worker to worker. Tensors
            arrive as arrays.

    Raises:
        ConfigurationError: it has something else, which nobody should take from another process.
    """
    connected = runtime()
    if connected is None:
        return [value]
    code = {module.__name__ for module in loaded_modules()}
    content = np.frombuffer(_pickled(value, code), np.uint8)
    length = -(-len(content) // 4)
    padded = np.zeros(4 * length, np.uint8)
    padded[: len(content)] = content
    with eager_mode():  # code of TensorFlow 1 turns it off
        rows, lengths = _gathered(connected, [tf.constant(padded.view(np.int32))])
        ends = np.cumsum(lengths[0].numpy())
        parts = np.split(rows[0].numpy(), ends[:-1])
    return [unpickled_data(part.tobytes(), code) for part in parts]


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        return np.asarray(value).__reduce__() if isinstance(value, tf.Tensor) else NotImplemented


def _pickled(value: Any, code: Collection[str]) -> bytes:
    """Returns what other workers read as data, without running anything that it names."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(value)
        unpickled_data(buffer.getvalue(), code)
    except (AttributeError, TypeError, ValueError, pickle.PicklingError) as error:
        raise ConfigurationError(
            "training.distributed.gather, or a metric of several slots: expected numbers, texts, "
            "arrays, containers of them, and objects of classes of your own modules, found "
            f"{describe(value)}: {error}."
        ) from error
    return buffer.getvalue()


# ---- sums ----------------------------------------------------------------------------------------


def _sums(
    connected: Runtime, values: Sequence[Any], weight: Any = None, factors: Sequence[float] = ()
) -> list[Any]:
    """Returns the sums of dense and sparse tensors over all workers, or their weighted means."""
    _check_agreement(connected, values)
    results: list[Any] = list(values)
    dense = [i for i, each in enumerate(values) if tf.is_tensor(each) and not _is_sparse(each)]
    sparse = [i for i, each in enumerate(values) if _is_sparse(each)]
    total = None
    for bucket in _buckets([(i, values[i]) for i in dense]):
        tensors = [values[i] for i in bucket]
        if weight is None:
            reduced = _all_reduced(connected, tensors)
        else:
            reduced, total = _means(connected, tensors, weight, [factors[i] for i in bucket])
        for i, each in zip(bucket, reduced, strict=True):
            results[i] = tf.cast(each, values[i].dtype)
    if sparse:
        scales = [None] * len(sparse)
        if weight is not None:
            if total is None:
                (total,) = _all_reduced(connected, [weight])
            share = tf.math.divide_no_nan(weight, tf.cast(total, tf.float32))
            scales = [share * factors[i] for i in sparse]
        gathered = _gathered_slices(connected, [values[i] for i in sparse], scales)
        for i, each in zip(sparse, gathered, strict=True):
            results[i] = each
    return results


def _means(
    connected: Runtime, tensors: Sequence[tf.Tensor], weight: tf.Tensor, factors: Sequence[float]
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns weighted means of tensors that are sent as one type, and the sum of all weights."""
    own = tf.cast(weight, sent_type(tensors[0]))
    scaled = [
        tf.math.multiply_no_nan(tf.cast(each, own.dtype), own * factor)
        for each, factor in zip(tensors, factors, strict=True)
    ]
    *totals, whole = _all_reduced(connected, [*scaled, own])
    return [tf.math.divide_no_nan(each, whole) for each in totals], whole


def _is_sparse(value: Any) -> bool:
    return isinstance(value, tf.IndexedSlices)


def _buckets(values: Iterable[tuple[int, tf.Tensor]]) -> Iterator[list[int]]:
    """Yields the numbers of tensors that are sent together: of one type, and not too large."""
    of_type: dict[tf.DType, list[tuple[int, int]]] = {}
    for number, tensor in values:
        sent_as = sent_type(tensor)
        num_bytes = (tensor.shape.num_elements() or 1) * sent_as.size
        of_type.setdefault(sent_as, []).append((number, num_bytes))
    for members in of_type.values():
        bucket: list[int] = []
        filled = 0
        for number, num_bytes in members:
            if bucket and filled + num_bytes > _BUCKET_BYTES:
                yield bucket
                bucket, filled = [], 0
            bucket.append(number)
            filled += num_bytes
        yield bucket


def _all_reduced(connected: Runtime, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the sums over all workers of tensors that are sent as one type, in that type."""
    sent = [tf.cast(each, sent_type(each)) for each in tensors]
    if len(sent) == 1 and sent[0].shape.rank:
        return [reduced_sum(connected, sent[0])]
    flat = reduced_sum(connected, tf.concat([tf.reshape(each, [-1]) for each in sent], 0))
    sizes = [each.shape.num_elements() for each in sent]
    if None in sizes:
        sizes = [tf.size(each) for each in sent]
    parts = tf.split(flat, sizes, num=len(sent))
    return [
        tf.reshape(part, each.shape if each.shape.is_fully_defined() else tf.shape(each))
        for part, each in zip(parts, sent, strict=True)
    ]


# ---- rows, of which each worker has another number -----------------------------------------------


def _gathered_slices(
    connected: Runtime, slices: Sequence[tf.IndexedSlices], scales: Sequence[Any]
) -> list[tf.IndexedSlices]:
    """Returns the rows of all workers, each times the scale that it has in its own worker."""
    values = [
        each.values if scale is None else each.values * tf.cast(scale, each.values.dtype)
        for each, scale in zip(slices, scales, strict=True)
    ]
    indices = [tf.cast(each.indices, tf.int64) for each in slices]
    rows, _ = _gathered(connected, [*values, *indices])
    return [
        tf.IndexedSlices(
            rows[i], tf.cast(rows[len(slices) + i], each.indices.dtype), each.dense_shape
        )
        for i, each in enumerate(slices)
    ]


def _gathered(
    connected: Runtime, tensors: Sequence[tf.Tensor]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Returns the rows of all workers one after another, and the number of each, by rank."""
    own = tf.stack([tf.shape(each)[0] for each in tensors])
    place = tf.one_hot(connected.rank, connected.size, dtype=tf.int32)
    lengths = reduced_sum(connected, own[:, tf.newaxis] * place)  # [tensors, workers]
    rows = []
    for i, tensor in enumerate(tensors):
        longest = _rounded(tf.reduce_max(lengths[i]))
        sent = tf.cast(tensor, sent_type(tensor))
        padding = [[0, longest - own[i]], *([[0, 0]] * (len(tensor.shape) - 1))]
        with uncompiled():  # its shapes are known when it runs
            gathered = gathered_rows(connected, tf.pad(sent, padding), longest)
            is_row = tf.reshape(tf.sequence_mask(lengths[i], longest), [-1])
            rows.append(tf.cast(tf.boolean_mask(gathered, is_row), tensor.dtype))
    return rows, [lengths[i] for i in range(len(tensors))]


def _rounded(length: tf.Tensor) -> tf.Tensor:
    """Returns the next of a few lengths, at most a quarter longer."""
    with tf.device("CPU:0"):  # a GPU would compile a kernel for each of these
        exponent = tf.math.log(tf.cast(tf.maximum(length, _SMALLEST_LENGTH), tf.float64))
        exponent = tf.cast(tf.floor(exponent / tf.math.log(tf.constant(2.0, tf.float64))), tf.int32)
        unit = tf.bitwise.left_shift(1, exponent - 2)
        return unit * ((tf.maximum(length, 1) + unit - 1) // unit)


def _check_agreement(connected: Runtime, values: Sequence[Any]) -> None:
    """Compares types and shapes with those of the other workers, when they are new here.

    Collectives of different shapes would wait for one another.
    """
    kinds = [_kind(each) for each in values]
    text = json.dumps(kinds)
    if text in _agreed:
        return
    connected.agree(
        "about to add tensors up",
        {str(number): kind for number, kind in enumerate(kinds)},
        lambda found: (
            "The workers train different models, or pass different tensors to "
            f"training.distributed: by their numbers, {found}. Expected the same types and "
            "shapes on all of them."
        ),
    )
    _agreed.add(text)


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    if _is_sparse(value):
        return f"rows of {value.values.dtype.name} {value.values.shape[1:]}"
    return f"{value.dtype.name} {value.shape}"


def _tensor(value: Any) -> Any:
    return None if value is None else tf.convert_to_tensor(value)
