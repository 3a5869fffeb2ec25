"""How the workers of an attempt ended, and which of them took the others with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from generic_trainer.launchers._failures import Failure
from generic_trainer.launchers._outcome import Outcome

__all__ = ["Ending", "decisive"]


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a run, or one of its workers, ended.

    Attributes:
        outcome: how.
        worker: the name of the worker that decided it; None where it was none of them.
    """

    outcome: Outcome
    worker: str | None = None


def decisive(failed: Iterable[Ending]) -> Ending:
    """Returns the failure that was the cause of the others.

    1. One that may be the consequence of another worker's end comes last.
    2. An error comes before a loss: who stops a worker may do so because another one failed.
    """
    return min(
        failed, key=lambda one: (one.outcome.lost_its_peers, one.outcome.failure is Failure.LOST)
    )
