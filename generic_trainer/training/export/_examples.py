"""Serialized examples as a graph gets them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

__all__ = ["EXAMPLES", "probe"]

EXAMPLES = tf.TensorSpec([None], tf.string, name="examples")


def probe(raw_spec: Mapping[str, Any], look: Callable[[dict[str, Any]], Any]) -> Any:
    """Returns `look(raw features)`, called once on symbolic tensors in a graph thrown away."""
    seen = []

    def trace(examples: tf.Tensor) -> None:
        seen.append(look(tf.io.parse_example(examples, raw_spec)))

    tf.function(trace, input_signature=[EXAMPLES], autograph=False).get_concrete_function()
    return seen[0]
