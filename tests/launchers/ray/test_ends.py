"""Ends of actors that have not returned them, and nodes that lack this package."""

import subprocess
import sys

import pytest
from ray import cloudpickle
from ray.exceptions import OutOfMemoryError, RayActorError

from generic_trainer._core.cluster import Task
from generic_trainer.launchers import Failure
from generic_trainer.launchers._ray.actors import actor_class
from generic_trainer.launchers._ray.engine import end_of_actor


@pytest.mark.parametrize(
    ("error", "failure", "message"),
    [
        (RayActorError(), Failure.LOST, "was lost, with its process or its node"),
        (OutOfMemoryError("killed"), Failure.MEMORY, "its node ran out of memory"),
        (ImportError("no module"), Failure.USER_CODE, "no module"),
    ],
)
def test_what_ray_raises_determines_the_class(
    error: Exception, failure: Failure, message: str
) -> None:
    end = end_of_actor(Task("worker", 1), error)
    assert (end.task, end.failure) == ("worker 1", failure)
    assert message in end.message


def test_node_without_this_package_reports_the_missing_module() -> None:
    sent = cloudpickle.dumps(actor_class())
    calls = (
        "import pickle, sys; worker = pickle.loads(sys.stdin.buffer.read())('worker 0');"
        "print(worker, worker.call('math:floor', 2.5)); worker.call('no_such_package.module:run')"
    )
    # Isolated, in an interpreter that finds neither this package nor the working directory.
    done = subprocess.run([sys.executable, "-I", "-c", calls], input=sent, capture_output=True)
    assert done.stdout == b"worker 0 2\n", done
    assert b"ModuleNotFoundError: No module named 'no_such_package'" in done.stderr
