"""The process that finds out ahead what two checks are about; see `_ahead`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from generic_trainer.validation._ahead import encode_outputs, tell
from generic_trainer.validation._check import Check
from generic_trainer.validation._checks.evaluator import eval_rehearsal, why_not_rehearsed
from generic_trainer.validation._checks.predictions import feeds_of
from generic_trainer.validation._checks.serving import loads, session
from generic_trainer.validation._confined import confined_model
from generic_trainer.validation._evaluation import evaluate
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._scoring import Feed, run_signature, session_of


def run(request: Mapping[str, Any], told: int) -> int:
    """Does for each of the checks what takes long of it, unless the check will not be made.

    Args:
        request: what `confined_model` takes, and `done`: check → its outcome, so far.
        told: descriptor that `Ahead` reads from at the other end.

    Returns:
        The exit code.
    """
    if loads.blocked_by(request["done"]):  # the model must not be run
        return 0
    model = confined_model(request)
    model.op_libraries  # noqa: B018 - imports on first use
    work: dict[Check, Callable[[], Any]] = {session: lambda: dict(_session_outputs(model))}
    if why_not_rehearsed(model) is None:
        work[eval_rehearsal] = lambda: evaluate(model)
    for check, find in work.items():
        is_off = model.contract.severities.get(check.name) == "skip"
        if not is_off and not check.blocked_by(request["done"]):
            tell(told, check.name, find)
    return 0


def _session_outputs(model: ModelUnderTest) -> Iterator[tuple[str, Any]]:
    feeds = {name: feed for name, feed in feeds_of(model) if isinstance(feed, Feed)}
    with session_of(str(model.directory)) as running:
        for name, feed in feeds.items():
            with contextlib.suppress(Exception):  # of which nobody may want to know
                outputs = run_signature(running, model.signatures[name], feed)
                yield name, encode_outputs(feed, outputs)
