"""Single collective operations of TensorFlow: their keys, their devices and their order.

A collective completes only if all workers start it with the same keys. If two workers start two
collectives in different orders, each may wait for the other forever, so the order is fixed in each
graph. `_collectives` builds sums, means and gathers from them.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from generic_trainer.errors import ConfigurationError
from generic_trainer.training.distributed._runtime import Runtime

# The keys must differ from those of TensorFlow's strategies, which count from 1. All devices of a
# group must be of one kind, so there is a group for each.
_GROUP_KEYS = {"CPU": 1 << 20, "GPU": (1 << 20) + 1}
# Type → the type that it is sent as. 16-bit floats would lose digits in a sum; TensorFlow has
# collectives for four types only.
_SENT_AS = {
    **{kind: kind for kind in (tf.float32, tf.float64, tf.int32, tf.int64)},
    tf.float16: tf.float32,
    tf.bfloat16: tf.float32,
    tf.bool: tf.int32,
    tf.int8: tf.int32,
    tf.uint8: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
}
_PROCESSOR = "/device:CPU:0"

# Graph → the number of its collectives, and the last of them.
_traced: weakref.WeakKeyDictionary[Any, tuple[int, Any]] = weakref.WeakKeyDictionary()


def reduced_sum(connected: Runtime, tensor: tf.Tensor) -> tf.Tensor:
    """Returns the sum of a tensor over all workers.

    Args:
        connected: the connection with the other workers.
        tensor: of a type that `sent_type` returns, and the same shape on all workers.
    """
    what = f"reduce {tensor.dtype.name} {tensor.shape}"
    op = functools.partial(tf.raw_ops.CollectiveReduceV2, merge_op="Add", final_op="Id")
    return tf.ensure_shape(_collective(connected, tensor, what, op), tensor.shape)


def gathered_rows(connected: Runtime, tensor: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
    """Returns the rows of all workers, concatenated by rank.

    Args:
        connected: the connection with the other workers.
        tensor: [length, ...], of a type that `sent_type` returns.
        length: integer [], the same on all workers.
    """
    what = f"gather {tensor.dtype.name} {tensor.shape[1:]}"
    gathered = _collective(connected, tensor, what, tf.raw_ops.CollectiveGatherV2, length)
    return tf.ensure_shape(gathered, [None, *tensor.shape[1:]])


def _collective(
    connected: Runtime,
    tensor: tf.Tensor,
    what: str,
    op: Callable[..., tf.Tensor],
    *length: tf.Tensor,
) -> tf.Tensor:
    """Creates a collective that runs after the previous one of the same graph.

    TensorFlow matches the collectives of different workers by their instance key. It is a hash of
    the description of the collective and its position in the graph, so all workers compute the same
    keys without communication, and a function that is traced again gets the same keys again.

    Args:
        connected: the connection with the other workers.
        tensor: the tensor that this worker sends.
        what: a description of the operation, equal on all workers.
        op: the TensorFlow operation.
        length: integer [], the number of rows if it differs from call to call. It changes the key,
            because TensorFlow needs a different one for each shape.
    """
    # The kind of device is equal on all workers. NCCL does not support two workers on one GPU, and
    # TensorFlow's collectives on GPUs do not support int32: such tensors are sent from the CPU.
    on_gpu = connected.has_own_gpu and tensor.dtype.is_floating
    device = connected.device if on_gpu else _PROCESSOR

    def make(place: str) -> tf.Tensor:
        key = tf.constant(zlib.crc32(f"{what} {place}".encode()) & 0x7FFFFFFF, tf.int32)
        return op(
            input=tensor,
            group_size=connected.size,
            group_key=_GROUP_KEYS[tf.DeviceSpec.from_string(device).device_type],
            instance_key=functools.reduce(tf.bitwise.bitwise_xor, length, key),
            ordering_token=[],
            communication_hint="auto",
        )

    if tf.executing_eagerly():
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
            result = tf.py_function(
                lambda tensor, *length: _collective(connected, tensor, what, op, *length),
                [tensor, *length],
                tensor.dtype,
            )
    else:
        # Counted only once its input exists: computing the input may end with OutOfRange, if the
        # data are exhausted, and then this collective never starts.
        with uncompiled():
            with tf.control_dependencies([tensor, *after]):
                begun = connected.entered.assign_add(1, read_value=False)
            with tf.control_dependencies([begun]), tf.device(device):
                result = make(str(number))
    _traced[graph] = (number + 1, result.op)
    return result


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Excludes operations that are created within the context from compilation by XLA."""
    with contextlib.ExitStack() as stack:
        if not tf.executing_eagerly():
            stack.enter_context(tf.xla.experimental.jit_scope(compile_ops=False))
        yield


def has_collectives(graph: tf.Graph) -> bool:
    """Returns whether a graph contains collectives."""
    return graph in _traced


def sent_type(tensor: tf.Tensor) -> tf.DType:
    """Returns the type to which a tensor is converted before it is sent.

    Raises:
        ConfigurationError: the tensor is not numeric.
    """
    if tensor.dtype not in _SENT_AS:
        raise ConfigurationError(
            f"training.distributed: expected numbers, found a tensor of {tensor.dtype.name}"
        )
    return _SENT_AS[tensor.dtype]
