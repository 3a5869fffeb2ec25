"""Findings of a second process for the check `session`, which loads the model once more.

It loads it (`_ahead_runner`) while the first one loads and calls it, and hands its findings over by
a pipe. What goes wrong there it keeps to itself: the check then does the work in its own process,
and meets the trouble there.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from generic_trainer.validation._scoring import Feed, Outputs, Scores


class Ahead:
    """The end that is told.

    Args:
        told: descriptor of a pipe for one line of `send`; None where nobody works ahead.

    Attributes:
        cpu_seconds: processor time of the other end.
    """

    def __init__(self, told: int | None = None) -> None:
        self.cpu_seconds = 0.0
        self._told = told

    def found(self) -> Any:
        """Returns what was found, None for nothing; waits for who is still at it."""
        told, self._told = self._told, None
        if told is None:
            return None
        with open(told, encoding="utf-8") as lines:
            line = lines.readline()
        if not line.endswith("\n"):  # nobody is left to end it
            return None
        event = json.loads(line)
        self.cpu_seconds = event["cpu_seconds"]
        return event["found"]


def send(descriptor: int, **event: Any) -> None:
    """Writes an event as one line of JSON."""
    line = (json.dumps(event) + "\n").encode()
    while line:
        line = line[os.write(descriptor, line) :]


def encode_outputs(feed: Feed, outputs: Outputs) -> dict[str, Any]:
    """Returns what a signature gives for a feed as JSON can hold it."""
    import tensorflow as tf

    protos = {key: tf.make_tensor_proto(value) for key, value in outputs.items()}
    texts = {k: base64.b64encode(each.SerializeToString()).decode() for k, each in protos.items()}
    return {"rows": feed.rows, "outputs": texts}


def decode_outputs(
    encoded: Mapping[str, Any], scores: Mapping[str, Scores]
) -> dict[str, dict[str, np.ndarray]] | None:
    """Returns signature → output → array; None where a signature was called with other rows."""
    import tensorflow as tf
    from tensorflow.core.framework import tensor_pb2

    if any(encoded.get(name, {}).get("rows") != each.feed.rows for name, each in scores.items()):
        return None
    return {
        name: {
            key: tf.make_ndarray(tensor_pb2.TensorProto.FromString(base64.b64decode(text)))
            for key, text in encoded[name]["outputs"].items()
        }
        for name in scores
    }
