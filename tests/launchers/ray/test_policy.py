"""Which of several failures counts, and which ones Ray may retry."""

from __future__ import annotations

import pytest
from ray.exceptions import OutOfMemoryError
from ray.train.v2._internal.exceptions import (
    WorkerHealthCheckFailedError,
    WorkerHealthCheckTimeoutError,
)

from generic_trainer.errors import DataError, TrainingError, WorkerLostError
from generic_trainer.launchers import Distribution, Failure
from generic_trainer.launchers._endings import Ending
from generic_trainer.launchers._members import members
from generic_trainer.launchers._outcome import Outcome
from generic_trainer.launchers.ray._policy import RetryLostWorkers, ending_of
from generic_trainer.launchers.ray._worker_failed import WorkerFailed

EVERYONE = members(Distribution(launcher="ray", num_workers=2))


def failed(error: Exception, **fields: bool) -> WorkerFailed:
    outcome = Outcome.of(error)
    return WorkerFailed(Ending(Outcome(**{**vars(outcome), **fields})))


DEAD = WorkerHealthCheckFailedError("dead", failure=RuntimeError("the actor died"))
NO_MEMORY = WorkerHealthCheckFailedError("dead", failure=OutOfMemoryError("killed"))


@pytest.mark.parametrize(
    ("failures", "worker", "failure"),
    [
        ({0: DEAD}, "chief", Failure.LOST),
        ({1: WorkerHealthCheckTimeoutError("hangs")}, "worker 0", Failure.LOST),
        ({1: NO_MEMORY}, "worker 0", Failure.MEMORY),
        ({0: failed(WorkerLostError("preempted"))}, "chief", Failure.LOST),
        ({0: DEAD, 1: failed(DataError("no file"))}, "worker 0", Failure.DATA),
        ({0: failed(TrainingError("abort"), lost_its_peers=True), 1: DEAD}, "worker 0",
         Failure.LOST),
        ({0: ImportError("no module")}, "chief", Failure.USER_CODE),
    ],
)  # fmt: skip
def test_cause_is_told_from_its_consequences(
    failures: dict[int, Exception], worker: str, failure: Failure
) -> None:
    ending = ending_of(failures, EVERYONE)
    assert (ending.worker, ending.outcome.failure) == (worker, failure)


def test_only_losses_are_left_to_ray_to_retry() -> None:
    policy = RetryLostWorkers(EVERYONE)
    policy.after_exception(None, {0: DEAD})
    with pytest.raises(WorkerFailed) as caught:
        policy.after_exception(None, {0: failed(DataError("no file"))})
    assert caught.value.ending.outcome.message == "no file"
