"""What Ray Train says about workers that failed, and which of them counts."""

from __future__ import annotations

import subprocess
import sys

import pytest
from ray import cloudpickle
from ray.exceptions import OutOfMemoryError

from generic_trainer._core import internals
from generic_trainer._core.cluster import Task
from generic_trainer.errors import DataError, TrainingError, WorkerLostError
from generic_trainer.launchers import Failure
from generic_trainer.launchers._ray.cluster import end_of_worker
from generic_trainer.launchers._ray.engine import sent_by_value
from generic_trainer.launchers._worker_end import WorkerEnd, WorkerTraceback, root_cause

FIRST, SECOND = Task("worker", 0), Task("worker", 1)
failed_check = internals.RAY_HEALTH_CHECK_FAILED.get()
DEAD = failed_check("dead", failure=RuntimeError("the actor died"))
NO_MEMORY = failed_check("dead", failure=OutOfMemoryError("killed"))
HANGS = internals.RAY_HEALTH_CHECK_TIMEOUT.get()("hangs")


def failed(error: Exception, task: Task, **fields: bool) -> WorkerTraceback:
    end = WorkerEnd.of(error, task.name)
    return WorkerTraceback(WorkerEnd(**{**vars(end), **fields}))


@pytest.mark.parametrize(
    ("failures", "worker", "failure"),
    [
        ({FIRST: DEAD}, "worker 0", Failure.LOST),
        ({SECOND: HANGS}, "worker 1", Failure.LOST),
        ({SECOND: NO_MEMORY}, "worker 1", Failure.MEMORY),
        ({FIRST: failed(WorkerLostError("preempted"), FIRST)}, "worker 0", Failure.LOST),
        ({FIRST: DEAD, SECOND: failed(DataError("no file"), SECOND)}, "worker 1", Failure.DATA),
        ({FIRST: failed(TrainingError("abort"), FIRST, may_be_consequence=True), SECOND: DEAD},
         "worker 1", Failure.LOST),
        ({FIRST: ImportError("no module")}, "worker 0", Failure.USER_CODE),
    ],
)  # fmt: skip
def test_cause_is_told_from_its_consequences(
    failures: dict[Task, Exception], worker: str, failure: Failure
) -> None:
    cause = root_cause([end_of_worker(task, error) for task, error in failures.items()])
    assert (cause.task, cause.failure) == (worker, failure)


def test_node_without_this_package_says_what_it_misses() -> None:
    sent = cloudpickle.dumps(sent_by_value())
    calls = (
        "import pickle, sys; call = pickle.loads(sys.stdin.buffer.read())().call;"
        "print(call('no_such_package.module:function', 1)); print(call('math:floor', 2.5))"
    )
    # Isolated, in an interpreter that finds neither this package nor the working directory.
    done = subprocess.run([sys.executable, "-I", "-c", calls], input=sent, capture_output=True)
    assert done.stdout.decode().splitlines() == ["No module named 'no_such_package'", "2"], done
