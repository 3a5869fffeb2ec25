"""The process that runs a model in a session while another one loads and calls it; see `_ahead`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from generic_trainer.validation._ahead import encode_outputs, send
from generic_trainer.validation._checks.predictions import feeds_of
from generic_trainer.validation._checks.serving import loads, session
from generic_trainer.validation._confined import confined_model
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._scoring import Feed, run_signature, session_of


def run(request: Mapping[str, Any], told: int) -> int:
    """Calls each signature in a session, unless the model must not be run or nobody wants to know.

    Args:
        request: what `confined_model` takes, and `done`: check → its outcome, so far.
        told: descriptor that `Ahead` reads from at the other end.

    Returns:
        The exit code.
    """
    if loads.blocked_by(request["done"]) or session.blocked_by(request["done"]):
        return 0
    model = confined_model(request)
    if model.contract.severities.get(session.name) == "skip":
        return 0
    model.op_libraries  # noqa: B018 - imports on first use
    with contextlib.suppress(Exception):  # the check will come upon it
        send(told, found=dict(_outputs(model)), cpu_seconds=time.process_time())
    return 0


def _outputs(model: ModelUnderTest) -> Iterator[tuple[str, Any]]:
    feeds = {name: feed for name, feed in feeds_of(model) if isinstance(feed, Feed)}
    with session_of(str(model.directory)) as running:
        for name, feed in feeds.items():
            with contextlib.suppress(Exception):  # of which nobody may want to know
                outputs = run_signature(running, model.signatures[name], feed)
                yield name, encode_outputs(feed, outputs)
