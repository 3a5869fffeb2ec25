"""The checks on one model, in a child of the fork server that is thrown away afterwards.

It reports each step as one line of JSON: `begin` with the first facts, `start` with the name of
each check, `result` with its verdict, and `complete` in the end.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from generic_trainer._core import machine
from generic_trainer.validation._ahead import Ahead, send
from generic_trainer.validation._check import Check, Result
from generic_trainer.validation._checks import all_checks, checks_for
from generic_trainer.validation._checks.predictions import scores
from generic_trainer.validation._confined import confined_model
from generic_trainer.validation._model import ModelUnderTest


def run(request: Mapping[str, Any], events: int, ahead: int) -> int:
    """Runs every check that is not done yet.

    Args:
        request: what `confined_model` takes, and `done`, of a process that died: check → its
            outcome, a status or `"blocked"` by a check that it needs.
        events: descriptor of the pipe that the events are written to.
        ahead: descriptor that `Ahead` reads from.

    Returns:
        The exit code.
    """
    model = confined_model(request)
    model.ahead = Ahead(ahead)
    send(events, event="begin", facts=model.facts)
    done = dict(request["done"])
    if done.get(scores.name) in ("pass", "warn"):
        scores.run(model)  # for the checks that are left; its result has been told
    for check in checks_for(model, done):
        if check.name not in done:
            send(events, event="start", check=check.name, advisory=check.is_advisory)
            result, outcome = _run_one(check, model, done)
            done[check.name] = outcome
            verdict = {"result": dataclasses.asdict(result), "outcome": outcome}
            send(events, event="result", **verdict, facts=model.facts)
    peak_mb = machine.peak_memory_mb()
    costs = {"cpu_seconds": round(time.process_time() + model.ahead.cpu_seconds, 3)}
    if peak_mb is not None:
        costs["peak_memory_mb"] = round(peak_mb, 1)
    send(events, event="complete", facts=costs)
    return 0


def _run_one(check: Check, model: ModelUnderTest, done: dict[str, str]) -> tuple[Result, str]:
    """Returns the result, and the outcome on which other checks depend."""
    if model.contract.severities.get(check.name) == "skip":
        return Result(check.name, "skip", "switched off by the contract"), "skip"
    if failed := check.blocked_by(done):
        return Result(check.name, "skip", _why_not(failed[0], done)), "blocked"
    result = check.run(model)
    return result, result.status


def _why_not(need: str, done: Mapping[str, str]) -> str:
    """Says which check did not pass, so that another one that needs it was not run."""
    checks = {check.name: check for check in all_checks()}
    while done[need] == "blocked":
        need = checks[need].blocked_by(done)[0]
    if need == "file_ops":
        return "not run, because the model would reach files or the network: see 'file_ops'"
    return f"not possible, because {need!r} did not pass"
