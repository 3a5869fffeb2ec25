"""Findings of one process for checks that another one is still to come to.

Two checks load the model once more, each in its own way: `session` and `eval_rehearsal`. A second
process does so (`_ahead_runner`) while the one that checks loads the model and calls it, and hands
over what it has found in files. What goes wrong there it keeps to itself: a check that is told
nothing does the work in its own process, and meets the trouble there.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from generic_trainer.validation._scoring import Feed, Outputs, Scores


class Ahead:
    """The end that is told, check by check in the order in which they run.

    Args:
        told: descriptor that `tell` has written to; None where nobody does.

    Attributes:
        cpu_seconds: processor time of the other end, when it was last heard of.
    """

    def __init__(self, told: int | None = None) -> None:
        self.cpu_seconds = 0.0
        self._lines: Iterator[str] = iter(())
        if told is not None:
            self._lines = open(told, encoding="utf-8")  # noqa: SIM115 - as long as the process

    def found_for(self, check: str) -> Any:
        """Returns what was found for a check, None for nothing; waits for who is still at it."""
        for line in self._lines:
            event = json.loads(line)
            self.cpu_seconds = event["cpu_seconds"]
            if event["check"] == check:
                file = event["file"]
                return file and json.loads(Path(file).read_text(encoding="utf-8"))
        return None


def tell(descriptor: int, check: str, find: Callable[[], Any]) -> None:
    """Writes what a function finds into a file of the working directory, and says where.

    Args:
        descriptor: where it is said.
        check: whom it is for.
        find: returns what JSON can hold; what it raises is swallowed.
    """
    event: dict[str, Any] = {"check": check, "file": None}
    with contextlib.suppress(Exception):  # the check will come upon it
        file = Path.cwd() / f"{check}.json"
        file.write_text(json.dumps(find()), encoding="utf-8")
        event["file"] = str(file)
    event["cpu_seconds"] = time.process_time()
    send(descriptor, **event)


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
