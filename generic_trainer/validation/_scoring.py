"""Calls the signatures of the loaded model and keeps what they return."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from generic_trainer.validation._feeds import Feed

__all__ = ["ODD_ROWS", "SINGLE_ROWS", "Scores", "call", "first_line", "score"]

ODD_ROWS = 7  # an incomplete last batch, of a size that no graph is built for by accident
SINGLE_ROWS = 4  # rows that are also scored alone

_WRAPPING = ("Graph execution error", "Detected at node", "Original stack", "File ", "<", "Node:")

Outputs = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Scores:
    """What one signature returned.

    Attributes:
        feed: what it was called with.
        batch: its outputs for all rows at once.
        odd: for the first `ODD_ROWS` rows.
        single: for each of the first `SINGLE_ROWS` rows alone.
    """

    feed: Feed
    batch: Outputs
    odd: Outputs
    single: tuple[Outputs, ...]


def score(signature: Any, feed: Feed) -> Scores:
    """Calls a loaded signature with all rows, with an odd remainder, and with single rows."""
    batch = call(signature, feed.inputs)
    odd = call(signature, feed.take(slice(0, ODD_ROWS)))
    singles = range(min(SINGLE_ROWS, feed.rows))
    return Scores(feed, batch, odd, tuple(call(signature, feed.take([row])) for row in singles))


def call(signature: Any, inputs: Mapping[str, np.ndarray]) -> Outputs:
    """Calls a loaded signature; ragged and sparse outputs are made dense."""
    import tensorflow as tf

    wanted = signature.structured_input_signature[1]
    tensors = {
        name: tf.constant(value, dtype=wanted[name].dtype if name in wanted else None)
        for name, value in inputs.items()
    }
    return {name: _dense(value) for name, value in signature(**tensors).items()}


def first_line(error: Exception) -> str:
    """Returns what an error says, without the stack and the graph that TensorFlow wraps it in."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith(_WRAPPING)]
    return f"{type(error).__name__}: {told[0][:500]}" if told else type(error).__name__


def _dense(value: Any) -> np.ndarray:
    import tensorflow as tf

    if isinstance(value, tf.RaggedTensor):
        value = value.to_tensor()
    elif isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value)
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)
