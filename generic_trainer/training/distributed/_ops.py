"""Single collectives of TensorFlow: which workers mean the same one, and in which order they come.

What is built of them is in `_collectives`.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from generic_trainer.errors import ConfigurationError
from generic_trainer.training.distributed._runtime import Runtime

# TensorFlow's strategies count their groups from 1.
_GROUP_KEY = 1 << 20
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
_SENT = (tf.float32, tf.float64, tf.int32, tf.int64)

# Graph → how many collectives it has, and the last one.
_traced: weakref.WeakKeyDictionary[Any, tuple[int, Any]] = weakref.WeakKeyDictionary()


def reduced_sum(connected: Runtime, tensor: tf.Tensor) -> tf.Tensor:
    """Returns the sum over all workers of a tensor of a type that `sent_type` returns."""
    return _collective(
        connected,
        tensor,
        f"reduce {tensor.dtype.name} {tensor.shape}",
        lambda key: tf.raw_ops.CollectiveReduceV2(
            input=tensor,
            group_size=connected.size,
            group_key=_GROUP_KEY,
            instance_key=key,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint="auto",
        ),
    )


def gathered_rows(connected: Runtime, tensor: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
    """Returns the rows of all workers one after another.

    Args:
        connected: the workers.
        tensor: [length, ...], of a type that `sent_type` returns.
        length: integer [], the same on all workers.
    """
    gathered = _collective(
        connected,
        tensor,
        f"gather {tensor.dtype.name} {tensor.shape[1:]}",
        # TensorFlow wants another key for each shape.
        lambda key: tf.raw_ops.CollectiveGatherV2(
            input=tensor,
            group_size=connected.size,
            group_key=_GROUP_KEY,
            instance_key=tf.bitwise.bitwise_xor(key, length),
            ordering_token=[],
            communication_hint="auto",
        ),
    )
    return tf.ensure_shape(gathered, [None, *tensor.shape[1:]])


def _collective(
    connected: Runtime, tensor: tf.Tensor, what: str, make: Callable[[tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """Makes a collective that follows the one made before it in the same graph.

    The number by which workers know that they mean the same one comes from what it does and how
    many came before: a function that is traced once more gets the same ones again.
    """
    if tf.executing_eagerly():
        connected.entered.assign_add(1)
        return make(_key(f"{what} eagerly"))
    graph = tf.compat.v1.get_default_graph()
    number, last = _traced.get(graph, (0, None))
    # It has not begun before there is something to send: the data may have come to their end.
    before = [tensor] if last is None else [tensor, last]
    with tf.control_dependencies(before):
        if graph.building_function:
            before = [connected.entered.assign_add(1, read_value=False)]
    with tf.control_dependencies(before):
        result = make(_key(f"{what} {number}"))
    _traced[graph] = (number + 1, result.op)
    return result


def _key(text: str) -> tf.Tensor:
    return tf.constant(zlib.crc32(text.encode()) & 0x7FFFFFFF, tf.int32)


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
