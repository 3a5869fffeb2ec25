"""Single collective operations of TensorFlow: their keys, their devices and their order.

A collective completes only if all workers start it with the same keys. If two workers start two
collectives in different orders, each may wait for the other forever, so the order is fixed in each
graph. `_collectives` builds sums, means and gathers from them.
"""

import contextlib
import weakref
import zlib
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer.errors import ConfigurationError
from generic_trainer.training.distributed._runtime import Runtime

# The keys must differ from those of TensorFlow's strategies, which count from 1. All devices of a
# group must be of one kind, so there is a group for each.
_GROUP_KEY = 1 << 20
_PROCESSOR = "/device:CPU:0"

# Graph → the number of its collectives, and the last of them.
_traced: weakref.WeakKeyDictionary[Any, tuple[int, Any]] = weakref.WeakKeyDictionary()


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
        key = tf.bitwise.bitwise_xor(key, length)
        return tf.raw_ops.CollectiveGatherV2(instance_key=key, **options)

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
