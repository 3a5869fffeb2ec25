"""Which failures Ray Train may retry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.exceptions import OutOfMemoryError
from ray.train import UserCallback

from generic_trainer.launchers._endings import Ending, decisive
from generic_trainer.launchers._failures import Failure
from generic_trainer.launchers._members import Member
from generic_trainer.launchers._outcome import Outcome
from generic_trainer.launchers.ray._worker_failed import WorkerFailed

__all__ = ["RetryLostWorkers", "ending_of"]

# Ray Train's names for a worker that does not answer; they are not public.
_NO_ANSWER = ("WorkerHealthCheckFailedError", "WorkerHealthCheckTimeoutError")


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
        ending = ending_of(worker_exceptions, self._everyone)
        if ending.outcome.failure is not Failure.LOST:
            raise WorkerFailed(ending)


def ending_of(failures: Mapping[int, Exception], everyone: tuple[Member, ...]) -> Ending:
    """Returns how the worker ended that took the others with it.

    Args:
        failures: rank → what Ray Train says happened to that worker.
        everyone: the workers, in the order of their ranks.
    """
    return decisive(
        Ending(_outcome(failure), everyone[rank].name) for rank, failure in failures.items()
    )


def _outcome(failure: Exception) -> Outcome:
    """Returns how a worker ended, as far as it is known."""
    if isinstance(failure, WorkerFailed):
        return failure.ending.outcome
    if type(failure).__name__ not in _NO_ANSWER:
        return Outcome.of(failure)
    reason = getattr(failure, "health_check_failure", failure)
    if isinstance(reason, OutOfMemoryError):
        message = "Ray has stopped this worker because its node ran out of memory."
        return Outcome(Failure.MEMORY, "WorkerMemoryError", message, trace=str(reason))
    message = "this worker was lost, with its process or its node."
    return Outcome(Failure.LOST, "WorkerLostError", message, trace=str(reason))
