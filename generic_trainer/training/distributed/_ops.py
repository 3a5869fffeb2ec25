"""Single collectives of TensorFlow: which workers mean the same one, and in which order they come.

What is built of them is in `_collectives`.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
import zlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from generic_trainer.errors import ConfigurationError
from generic_trainer.training.distributed._runtime import Runtime

# TensorFlow's strategies count their groups from 1. A group has devices of one kind.
_GROUP_KEYS = {"CPU": 1 << 20, "GPU": (1 << 20) + 1}
# Types that are sent as others. Halves would lose digits in a sum; the rest has no collective.
_SENT_AS = {
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
_SENT = (tf.float32, tf.float64, tf.int32, tf.int64)

# Graph → how many collectives it has, and the last one.
_traced: weakref.WeakKeyDictionary[Any, tuple[int, Any]] = weakref.WeakKeyDictionary()


def reduced_sum(connected: Runtime, tensor: tf.Tensor) -> tf.Tensor:
    """Returns the sum over all workers of a tensor of a type that `sent_type` returns."""
    if _is_for_a_session():
        called = functools.partial(reduced_sum, connected)
        return tf.ensure_shape(_called_in_session(called, [tensor]), tensor.shape)
    what = f"reduce {tensor.dtype.name} {tensor.shape}"
    op = tf.raw_ops.CollectiveReduceV2
    return _collective(connected, tensor, what, op, merge_op="Add", final_op="Id")


def gathered_rows(connected: Runtime, tensor: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
    """Returns the rows of all workers one after another.

    Args:
        connected: the workers.
        tensor: [length, ...], of a type that `sent_type` returns.
        length: integer [], the same on all workers.
    """
    if _is_for_a_session():
        called = functools.partial(gathered_rows, connected)
        gathered = _called_in_session(called, [tensor, length])
        return tf.ensure_shape(gathered, [None, *tensor.shape[1:]])
    what = f"gather {tensor.dtype.name} {tensor.shape[1:]}"
    gathered = _collective(connected, tensor, what, tf.raw_ops.CollectiveGatherV2, length=length)
    return tf.ensure_shape(gathered, [None, *tensor.shape[1:]])


def _collective(
    connected: Runtime,
    tensor: tf.Tensor,
    what: str,
    op: Callable[..., tf.Tensor],
    *,
    length: tf.Tensor | None = None,
    **attributes: str,
) -> tf.Tensor:
    """Makes a collective that follows the one made before it in the same graph.

    The number by which workers know that they mean the same one comes from what it does and how
    many came before: a function that is traced once more gets the same ones again.

    Args:
        connected: the workers.
        tensor: what this one sends.
        what: what it does.
        op: the collective.
        length: integer [], where it differs from call to call: TensorFlow wants another number for
            each shape.
        attributes: of the op.
    """

    def make(place: str) -> tf.Tensor:
        key = tf.constant(zlib.crc32(f"{what} {place}".encode()) & 0x7FFFFFFF, tf.int32)
        return op(
            input=tensor,
            group_size=connected.size,
            group_key=_GROUP_KEYS[tf.DeviceSpec.from_string(device).device_type],
            instance_key=key if length is None else tf.bitwise.bitwise_xor(key, length),
            ordering_token=[],
            communication_hint="auto",
            **attributes,
        )

    device = _sends_from(connected, tensor.dtype)
    if tf.executing_eagerly():
        connected.entered.assign_add(1)
        with tf.device(device):
            return make("eagerly")
    graph = tf.compat.v1.get_default_graph()
    number, last = _traced.get(graph, (0, None))
    # It has not begun before there is something to send: the data may have come to their end.
    with uncompiled():
        with tf.control_dependencies([tensor] if last is None else [tensor, last]):
            begun = connected.entered.assign_add(1, read_value=False)
        with tf.control_dependencies([begun]), tf.device(device):
            result = make(str(number))
    _traced[graph] = (number + 1, result.op)
    return result


def _sends_from(connected: Runtime, kind: tf.DType) -> str:
    """Returns the device whose memory a collective sends from, of the same kind on all workers.

    NCCL takes one worker for each GPU, and TensorFlow's collectives on GPUs take no int32.
    """
    return connected.device if connected.has_own_gpu and kind.is_floating else _PROCESSOR


def uncompiled() -> contextlib.AbstractContextManager[None]:
    """Has XLA leave out what is made here, within a step that it compiles around that."""
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    scope: contextlib.AbstractContextManager[None]
    scope = tf.xla.experimental.jit_scope(compile_ops=False)
    return scope


def _is_for_a_session() -> bool:
    with tf.init_scope():
        return not tf.executing_eagerly()


def _called_in_session(function: Callable[..., tf.Tensor], arguments: list[tf.Tensor]) -> tf.Tensor:
    """Returns what a function returns that a session calls, in the order of all such calls.

    A session knows of no other process; what it calls in Python runs eagerly, and does.
    """
    graph = tf.compat.v1.get_default_graph()
    number, last = _traced.get(graph, (0, None))
    # On a GPU, such a call of a session fails.
    with tf.control_dependencies([] if last is None else [last]), tf.device(_PROCESSOR):
        result = tf.py_function(function, arguments, arguments[0].dtype)
    _traced[graph] = (number + 1, result.op)
    return result


def has_collectives(graph: tf.Graph) -> bool:
    """Returns whether a graph has anything that all workers compute together."""
    return graph in _traced


def sent_type(tensor: tf.Tensor) -> tf.DType:
    """Returns the type that a tensor is sent as.

    Raises:
        ConfigurationError: it holds no numbers.
    """
    sent_as = _SENT_AS.get(tensor.dtype, tensor.dtype)
    if sent_as not in _SENT:
        raise ConfigurationError(
            f"training.distributed: expected numbers, found a tensor of {tensor.dtype.name}"
        )
    return sent_as
