"""Which failures Ray Train may retry, and which of several is the cause of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.exceptions import OutOfMemoryError
from ray.train import UserCallback

from generic_trainer.launchers._failures import Failure
from generic_trainer.launchers._members import Member
from generic_trainer.launchers._outcome import Outcome
from generic_trainer.launchers.ray._ending import Ending, WorkerFailed

__all__ = ["RetryLostWorkers", "cause_of"]


class RetryLostWorkers(UserCallback):
    """Ends the run at the first failure that a second attempt could not help.

    Ray Train retries whatever fails, `max_failures` times. An error in this callback is one of the
    controller, which it does not retry.
    """

    def __init__(self, everyone: tuple[Member, ...]) -> None:
        """Notes the workers, in the order of their ranks."""
        self._everyone = everyone

    def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, Exception]) -> None:
        """Called by the controller when workers have failed."""
        ending = cause_of(worker_exceptions, self._everyone)
        if ending.outcome.failure is not Failure.LOST:
            raise WorkerFailed(ending)


def cause_of(failures: Mapping[int, Exception], everyone: tuple[Member, ...]) -> Ending:
    """Returns how the worker ended that took the others with it.

    Args:
        failures: rank → what Ray Train says happened to that worker.
        everyone: the workers, in the order of their ranks.
    """
    endings = [Ending(_outcome(failure), everyone[rank].name) for rank, failure in failures.items()]
    return min(endings, key=lambda one: (_is_consequence(one), one.outcome.failure is Failure.LOST))


def _is_consequence(ending: Ending) -> bool:
    return ending.outcome.lost_its_peers


def _outcome(failure: Exception) -> Outcome:
    """Returns how a worker ended, as far as it is known."""
    if isinstance(failure, WorkerFailed):
        return failure.ending.outcome
    reason = getattr(failure, "health_check_failure", failure)
    if isinstance(reason, OutOfMemoryError):
        message = "Ray has stopped this worker because its node ran out of memory."
        return Outcome(Failure.MEMORY, "WorkerMemoryError", message, trace=str(reason))
    message = "this worker was lost, with its process or its node."
    return Outcome(Failure.LOST, "WorkerLostError", message, trace=str(reason))
