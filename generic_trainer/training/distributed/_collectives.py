"""Collective operations on tensors: sums, averages of gradients, broadcasts and gathers.

All workers must call each function at the same point of the program, with tensors of the same types
and shapes: eagerly, within a `tf.function`, or in a graph of TensorFlow 1. CPUs exchange the
tensors in a ring; if each worker has a separate GPU, NCCL exchanges floating-point tensors. In a
process without other workers, each function returns its argument.

They consist of single collectives of TensorFlow. One completes only if all workers start it with
the same keys. If two workers start two collectives in different orders, each may wait for the other
forever, so the order is fixed in each graph.

Worker 0 has 6 rows of a batch, worker 1 has 2. One step of a model with two small weights and an
embedding, of which worker 0 has looked up 3 rows and worker 1 a single one::

    number  worker 0 starts              worker 1 starts              both get
    -       the kinds of its tensors     the same, else an error      (`_check_agreement`, once)
    0       [6 g, 6 h, 6]                [2 g', 2 h', 2]              the sums: weights, rows
    1       lengths: rows [3, 0],        rows [0, 1],                 rows [3, 1],
            indices [3, 0]               indices [0, 1]               indices [3, 1]
    2       3 rows, padded to 4          1 row, padded to 4           8 rows, of which 4 are kept
    3       their 3 indices, likewise    1 index                      8 indices, 4 kept

`average_gradients` divides all sums by 8, the number of rows, which came along in collective 0.
"""

import contextlib
import functools
import weakref
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.texts import describe
from generic_trainer._core.values import unpickled_data
from generic_trainer.errors import ConfigurationError
from generic_trainer.training._plain import pickled
from generic_trainer.training.distributed._runtime import Runtime, eager_mode, runtime
from generic_trainer.user_code import loaded_modules

# The keys must differ from those of TensorFlow's strategies, which count from 1. All devices of a
# group must be of one kind, so there is a group for each.
_GROUP_KEY = 1 << 20
_PROCESSOR = "/device:CPU:0"
# Graph → the number of its collectives, and the last of them.
_traced: weakref.WeakKeyDictionary[Any, tuple[int, Any]] = weakref.WeakKeyDictionary()
# Smaller tensors are concatenated. A ring spends most of its time waiting if it sends many small
# tensors one by one; concatenating large ones costs a copy without making the ring faster.
_LARGE_BYTES = 4 << 20
# TensorFlow needs another collective for each number of rows, so these are rounded up, by less than
# a quarter, to one of a few.
_LENGTHS = np.geomspace(4, np.iinfo(np.int32).max, 92).astype(np.int32)


def collective(connected: Runtime, tensor: tf.Tensor, length: Any = None) -> tf.Tensor:
    """Returns the sum of a tensor over all workers, or the rows of all of them, by rank.

    It runs after the previous collective of the same graph. TensorFlow matches the collectives of
    different workers by their instance key. It is a hash of the description of the collective and
    its position in the graph, so all workers compute the same keys without communication, and a
    function that is traced again gets the same keys again.

    Args:
        connected: the connection with the other workers.
        tensor: of a type that `sent_type` returns, and the same shape on all workers.
        length: integer [], the number of rows of the tensor, to gather them; None for the sum. It
            changes the key, because TensorFlow needs a different one for each shape.
    """
    shape = tensor.shape if length is None else tf.TensorShape([None, *tensor.shape[1:]])
    what = f"{'reduce' if length is None else 'gather'} {tensor.dtype.name} {shape}"
    # The kind of device is equal on all workers. NCCL does not support two workers on one GPU, and
    # TensorFlow's collectives on GPUs do not support int32: such tensors are sent from the CPU.
    on_gpu = connected.has_own_gpu and tensor.dtype.is_floating
    device = connected.device if on_gpu else _PROCESSOR

    def make(place: str) -> tf.Tensor:
        key = tf.constant(zlib.crc32(f"{what} {place}".encode()) & 0x7FFFFFFF, tf.int32)
        options = {
            "input": tensor,
            "group_size": connected.size,
            "group_key": _GROUP_KEY + on_gpu,
            "ordering_token": [],
            "communication_hint": "auto",
        }
        if length is None:
            sum_up = {"instance_key": key, "merge_op": "Add", "final_op": "Id"}
            return tf.raw_ops.CollectiveReduceV2(**sum_up, **options)
        key = tf.bitwise.bitwise_xor(key, length)  # known only while the graph runs
        return tf.raw_ops.CollectiveGatherV2(instance_key=key, **options)

    if tf.executing_eagerly():
        # Before it starts: one that never returns is how `Runtime` recognises a deadlock.
        connected.entered.assign_add(1)
        with tf.device(device):
            return make("eagerly")
    with tf.init_scope():
        is_for_a_session = not tf.executing_eagerly()
    graph = tf.compat.v1.get_default_graph()
    number, last = _traced.get(graph, (0, None))
    # The control dependency on the previous collective keeps the order in the graph.
    after = [] if last is None else [last]
    if is_for_a_session:
        # A session is not connected with other processes, but the eager runtime of this process
        # is. So the session calls back into Python, which runs the collective eagerly. Such a call
        # fails if a session places it on a GPU.
        with tf.control_dependencies(after), tf.device(_PROCESSOR):
            sent = [tensor] if length is None else [tensor, length]
            result = tf.py_function(lambda *sent: collective(connected, *sent), sent, tensor.dtype)
    else:
        # Counted only once its input exists: computing the input may end with OutOfRange, if the
        # data are exhausted, and then this collective never starts.
        with uncompiled():
            with tf.control_dependencies([tensor, *after]):
                begun = connected.entered.assign_add(1, read_value=False)
            with tf.control_dependencies([begun]), tf.device(device):
                result = make(str(number))
    _traced[graph] = (number + 1, result.op)
    return tf.ensure_shape(result, shape)


def uncompiled() -> contextlib.AbstractContextManager[Any]:
    """Excludes operations that are created within the context from compilation by XLA."""
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    return tf.xla.experimental.jit_scope(compile_ops=False)


def has_collectives(graph: tf.Graph) -> bool:
    """Returns whether a graph contains collectives."""
    return graph in _traced


def sent_type(tensor: tf.Tensor) -> tf.DType:
    """Returns the type to which a tensor is converted before it is sent.

    TensorFlow has collectives for these types only. 16-bit floats would lose digits in a sum.

    Raises:
        ConfigurationError: the tensor is not numeric, or its numbers fit none of these types.
    """
    kind = tensor.dtype
    kinds = (tf.float32, tf.float64) if kind.is_floating else (tf.int32, tf.int64)
    for sent in kinds if is_number(tensor) else ():
        if np.can_cast(kind.as_numpy_dtype, sent.as_numpy_dtype):
            return sent
    raise ConfigurationError(
        f"training.distributed: expected numbers, found a tensor of {kind.name}"
    )


def is_number(value: Any) -> bool:
    """Returns whether a tensor or variable can be sent to other workers; a string cannot."""
    kind = value.dtype.base_dtype
    return bool(kind.is_floating or kind.is_integer or kind.is_bool)


@tf.autograph.experimental.do_not_convert
def all_reduce(values: Any) -> Any:
    """Returns the sum over all workers of each tensor of a structure.

    ::

        loss, correct, rows = distributed.all_reduce([loss * rows, correct, rows])

    Args:
        values: a structure of tensors, arrays and numbers, with the same types and shapes on all
            workers. Only `tf.IndexedSlices` may have a different number of rows on each. None stays
            None.

    Returns:
        The same structure, with `tf.IndexedSlices` that have the rows of all workers.

    Raises:
        ConfigurationError: another worker has other types or shapes.
    """
    connected = runtime()
    flat = [*map(_tensor, tf.nest.flatten(values, expand_composites=False))]
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

    1. With `rows`, each worker is weighted by its number of rows, so the result is the gradient of
       the mean over all rows, even if the workers' shares of a batch differ in size. Without
       `rows`, all workers have the same weight.
    2. A worker with 0 rows has no influence, even if its gradients are NaN.

    Args:
        gradients: a list of tensors, `tf.IndexedSlices` and None; or a `tf.GradientTape`. For a
            tape, the result is a tape whose `gradient(target, sources)` returns such averages.
        rows: integer [], the number of rows over which this worker's loss is a mean.

    Raises:
        ConfigurationError: another worker has gradients of other types or shapes.
    """
    if isinstance(gradients, tf.GradientTape):
        return _AveragingTape(gradients, rows)
    gradients = list(gradients)
    if runtime() is None:
        return gradients
    # The weight travels with the gradients, so it costs no collective of its own.
    weight = tf.cast(1 if rows is None else rows, tf.float32)
    # No rows have no loss: their gradients may be NaN, which times 0 would spread to all.
    scaled = [_scaled(tf.math.multiply_no_nan, gradient, weight) for gradient in gradients]
    *totals, whole = all_reduce([*scaled, weight])
    means = [_scaled(tf.math.divide_no_nan, total, whole) for total in totals]
    return [
        None if gradient is None else tf.cast(mean, gradient.dtype)
        for mean, gradient in zip(means, gradients, strict=True)
    ]


def _scaled(function: Callable[..., tf.Tensor], value: Any, weight: tf.Tensor) -> Any:
    """Multiplies or divides a tensor by a weight, in the type in which it is sent.

    16-bit floats would overflow if they were multiplied by a number of rows.
    """
    if value is None:
        return None
    if _is_sparse(value):
        values = _scaled(function, value.values, weight)
        return tf.IndexedSlices(values, value.indices, value.dense_shape)
    value = tf.cast(value, sent_type(value))
    return function(value, tf.cast(weight, value.dtype))


class _AveragingTape:
    """A gradient tape that averages its gradients over all workers."""

    def __init__(self, tape: tf.GradientTape, rows: Any) -> None:
        self._tape = tape
        self._rows = rows

    def gradient(self, target: Any, sources: Any, **options: Any) -> Any:
        """Returns the gradients of the tape, averaged over all workers."""
        gradients = self._tape.gradient(target, sources, **options)
        flat = tf.nest.flatten(gradients, expand_composites=False)
        averages = average_gradients(flat, rows=self._rows)
        return tf.nest.pack_sequence_as(gradients, averages, expand_composites=False)


@tf.autograph.experimental.do_not_convert
def broadcast(values: Any, root: int = 0) -> Any:
    """Returns, in all workers, the tensors that one worker passes.

    Args:
        values: see `all_reduce`, but without `tf.IndexedSlices`. The other workers pass tensors of
            the same types and shapes, whose values are ignored.
        root: the rank of the worker whose tensors are returned.

    Raises:
        ConfigurationError: another worker has other types or shapes.
    """
    connected = runtime()
    is_root = connected is None or connected.rank == root
    # A sum with zeros is exact, so that two kinds of collectives are enough.
    return all_reduce(
        tf.nest.map_structure(
            lambda value: value if is_root or value is None else tf.zeros_like(value), values
        )
    )


def gather(value: Any) -> list[Any]:
    """Returns the values that all workers pass, by rank.

    It runs immediately, even while a graph is being built.

    Args:
        value: numbers, strings, bytes, arrays, containers of them, and objects of classes in the
            user's own modules. Type and size may differ between workers. Tensors arrive as arrays.

    Raises:
        ConfigurationError: the value contains an object of another class. Unpickling such objects
            from another process is unsafe.
    """
    connected = runtime()
    if connected is None:
        return [value]
    code = {module.__name__ for module in loaded_modules()}
    try:
        content = pickled(value, code)
    except ValueError as error:
        raise ConfigurationError(
            "training.distributed.gather, or a metric of several slots: expected numbers, strings, "
            "arrays, containers of them, and objects of classes in your own modules, found "
            f"{describe(value)}: {error}."
        ) from error
    words = np.frombuffer(content + bytes(-len(content) % 4), np.int32)
    with eager_mode():  # code for TensorFlow 1 may have disabled it
        of_all = all_reduce(
            tf.IndexedSlices(tf.constant(words), tf.fill(words.shape, connected.rank))
        )
    words = of_all.values.numpy()
    ranks = of_all.indices.numpy()
    return [unpickled_data(words[ranks == rank].tobytes(), code) for rank in range(connected.size)]


# ---- sums ----------------------------------------------------------------------------------------


def _sums(connected: Runtime, values: Sequence[Any]) -> list[Any]:
    """Returns the sums of dense and sparse tensors over all workers.

    All workers must start the same collectives in the same order: the dense tensors bucket by
    bucket, then the rows of the sparse ones.
    """
    _check_agreement(connected, *map(_kind, values))
    results: list[Any] = list(values)
    for bucket in _buckets(values):
        sent = [tf.cast(values[i], sent_type(values[i])) for i in bucket]
        flat = collective(connected, tf.concat([tf.reshape(tensor, [-1]) for tensor in sent], 0))
        parts = tf.split(flat, [tf.size(tensor) for tensor in sent], num=len(sent))
        for i, part in zip(bucket, parts, strict=True):
            results[i] = tf.cast(tf.reshape(part, tf.shape(values[i])), values[i].dtype)
    sparse = [i for i, value in enumerate(values) if _is_sparse(value)]
    if sparse:
        parts = [part for i in sparse for part in (values[i].values, values[i].indices)]
        rows = _gathered(connected, parts)
        for i, gathered, indices in zip(sparse, rows[::2], rows[1::2], strict=True):
            results[i] = tf.IndexedSlices(gathered, indices, values[i].dense_shape)
    return results


def _is_sparse(value: Any) -> bool:
    return isinstance(value, tf.IndexedSlices)


def _buckets(values: Sequence[Any]) -> list[list[int]]:
    """Returns the numbers of dense tensors to send together: small ones that are of one type."""
    buckets: dict[tuple[tf.DType, int | None], list[int]] = {}
    for number, value in enumerate(values):
        if tf.is_tensor(value) and not _is_sparse(value):
            sent_as = sent_type(value)
            is_large = (value.shape.num_elements() or 1) * sent_as.size > _LARGE_BYTES
            buckets.setdefault((sent_as, number if is_large else None), []).append(number)
    return [*buckets.values()]


def _gathered(connected: Runtime, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns, for each tensor, the rows of all workers, whose numbers of rows may differ.

    TensorFlow's gather needs equal lengths. So the workers first exchange their numbers of rows,
    then each pads its rows to the greatest number (rounded up), and the padding is removed from the
    result.
    """
    own = tf.stack([tf.shape(tensor)[0] for tensor in tensors])
    place = tf.one_hot(connected.rank, connected.size, dtype=tf.int32)
    lengths = collective(connected, own[:, tf.newaxis] * place)  # [tensors, workers]
    rows = []
    with uncompiled():  # XLA needs static shapes, and these are only known at run time
        with tf.device("CPU:0"):  # a GPU would compile a kernel for each of these operations
            longest = tf.gather(_LENGTHS, tf.searchsorted(_LENGTHS, tf.reduce_max(lengths, 1)))
        for i, tensor in enumerate(tensors):
            sent = tf.cast(tensor, sent_type(tensor))
            padding = [[0, longest[i] - own[i]], *([[0, 0]] * (len(tensor.shape) - 1))]
            gathered = collective(connected, tf.pad(sent, padding), longest[i])
            is_row = tf.reshape(tf.sequence_mask(lengths[i], longest[i]), [-1])
            rows.append(tf.cast(tf.boolean_mask(gathered, is_row), tensor.dtype))
    return rows


@functools.cache
def _check_agreement(connected: Runtime, *kinds: str) -> None:
    """Compares types and shapes with those of the other workers, once for each combination.

    Without it, collectives of different shapes would wait for one another forever.
    """
    facts = [f"tensor {number}: {kind}" for number, kind in enumerate(kinds)]
    connected.agree("about to add tensors up", facts)


def _kind(value: Any) -> str:
    if _is_sparse(value):
        return f"rows of {value.dtype.name} {value.values.shape[1:]} by {value.indices.dtype.name}"
    return "None" if value is None else f"{value.dtype.name} {value.shape}"


def _tensor(value: Any) -> Any:
    return value if value is None or _is_sparse(value) else tf.convert_to_tensor(value)
