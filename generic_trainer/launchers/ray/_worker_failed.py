"""How a worker failed, as Ray carries it from process to process."""

from __future__ import annotations

from generic_trainer.launchers._endings import Ending

__all__ = ["WorkerFailed"]


class WorkerFailed(Exception):
    """A worker did not end well; `args[0]` is its `Ending`."""

    @property
    def ending(self) -> Ending:
        """How it ended."""
        ending: Ending = self.args[0]
        return ending
