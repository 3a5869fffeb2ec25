"""A script's way to a trial: it is run up to the line that would train, and no further.

On a cluster the script is run anew for each trial, with the trial's hyperparameters. `init` returns
their context; the call that would train raises, and takes along what there is to train.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from generic_trainer.trials._loop import Controller
from generic_trainer.trials._trial import TrialRun

__all__ = ["StopLoadingImplementation", "loading", "run_to_load"]


class StopLoadingImplementation(BaseException):
    """Ends a script where it would train; no `except Exception` of the script keeps it.

    Attributes:
        controller: the trial, ready to be trained.
    """

    def __init__(self, controller: Controller) -> None:
        """Takes what there is to train."""
        super().__init__("the script is loaded")
        self.controller = controller


_run: contextvars.ContextVar[TrialRun | None] = contextvars.ContextVar("loading", default=None)


def run_to_load() -> TrialRun | None:
    """Returns the trial that the running script is to be loaded for; None in a plain run."""
    return _run.get()


@contextlib.contextmanager
def loading(run: TrialRun) -> Iterator[None]:
    """Makes scripts load a trial instead of submitting an experiment."""
    token = _run.set(run)
    try:
        yield
    finally:
        _run.reset(token)
