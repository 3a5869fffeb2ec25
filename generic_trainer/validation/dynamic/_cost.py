"""What does a prediction cost?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

from generic_trainer._core.machine import resident_memory_mb
from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail, note, skip
from generic_trainer.validation._scoring import Scores, call

__all__ = ["latency", "memory"]

_MAX_CALLS = 11
_MAX_SECONDS = 0.5


@check("latency", needs=("scores",))
def latency(model: ModelUnderTest) -> Iterator[Finding]:
    """One example is scored within the contract's time, in the median."""
    name = _main_signature(model)
    if name is None:
        yield skip("no signature was called")
        return
    median_ms = _median_ms(model.loaded.signatures[name], model.scores[name])
    model.facts["latency_ms"] = round(median_ms, 3)
    budget = model.contract.max_latency_ms
    if budget is not None and median_ms > budget:
        yield fail(
            f"signature {name!r} takes {median_ms:.3g} ms for one example, the budget is "
            f"{budget:g} ms (on the CPU of the machine that checks)",
            "make the model smaller, move work into Transform, or raise max_latency_ms",
        )
    else:
        yield note(f"{median_ms:.3g} ms for one example on this machine's CPU")


@check("memory", needs=("scores",))
def memory(model: ModelUnderTest) -> Iterator[Finding]:
    """Loading and scoring stays within the contract's memory."""
    before_mb, after_mb = model.memory_before_mb, resident_memory_mb()
    if before_mb is None or after_mb is None:
        yield skip("resident memory cannot be read on this system")
        return
    used_mb = max(after_mb - before_mb, 0.0)
    model.facts["memory_mb"] = round(used_mb, 1)
    budget = model.contract.max_memory_mb
    if budget is not None and used_mb > budget:
        yield fail(
            f"loading and scoring took {used_mb:.0f} MiB, the budget is {budget:g} MiB",
            "make the model smaller, share embeddings, or raise max_memory_mb",
        )
    else:
        yield note(f"{used_mb:.0f} MiB to load and score")


def _main_signature(model: ModelUnderTest) -> str | None:
    served = [name for name in model.serving_signatures if name in model.scores]
    return "serving_default" if "serving_default" in served else next(iter(served), None)


def _median_ms(signature: Any, scores: Scores) -> float:
    one = scores.feed.take([0])
    taken: list[float] = []
    started = time.perf_counter()
    while len(taken) < _MAX_CALLS and time.perf_counter() - started < _MAX_SECONDS:
        before = time.perf_counter()
        call(signature, one)
        taken.append(1000 * (time.perf_counter() - before))
    return statistics.median(taken)
