"""How a worker ended, as Ray carries it from process to process."""

from __future__ import annotations

import dataclasses

from generic_trainer.launchers._outcome import Outcome

__all__ = ["Ending", "WorkerFailed"]


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a run, or one of its workers, ended.

    Attributes:
        outcome: how.
        worker: the name of the worker that decided it; None where it was none of them.
    """

    outcome: Outcome
    worker: str | None = None


class WorkerFailed(Exception):
    """A worker did not end well; `args[0]` is its `Ending`."""

    @property
    def ending(self) -> Ending:
        """How it ended."""
        ending: Ending = self.args[0]
        return ending
