"""One run of a session, many times over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

__all__ = ["Step", "make_step"]

Step = Callable[..., list[dict[str, Any]]]


def make_step(
    session: tf.compat.v1.Session,
    feeds: Sequence[tf.Tensor],
    fetched: Sequence[Mapping[str, Any]],
    *operations: tf.Operation,
) -> Step:
    """Returns a function that takes the feeds and returns the values, in the shape of `fetched`.

    It costs half of what `Session.run` costs, which looks at its arguments anew each time. Make it
    once: TensorFlow prepares the graph for each.

    Args:
        session: the session.
        feeds: tensors to feed.
        fetched: tensors or variables by name.
        operations: what is run as well.
    """
    with session.graph.as_default():
        tensors = [tf.convert_to_tensor(part) for parts in fetched for part in parts.values()]
    run = session._make_callable_from_options(
        config_pb2.CallableOptions(
            feed=[tensor.name for tensor in feeds],
            fetch=[tensor.name for tensor in tensors],
            target=[operation.name for operation in operations],
        )
    )

    def step(*values: Any) -> list[dict[str, Any]]:
        found = iter(run(*map(_as_array, values)))
        return [{name: next(found) for name in parts} for parts in fetched]

    return step


def _as_array(value: Any) -> np.ndarray:
    return np.asarray(value, dtype=object if isinstance(value, bytes) else None)
