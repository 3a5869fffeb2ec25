"""Program of a container: `python -m generic_trainer.launchers._remote.program FOLDER DIGEST`."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from generic_trainer._core.cluster import Task, cluster_addresses, this_task
from generic_trainer._core.output import shown_output
from generic_trainer.launchers._distribution import Distribution, tasks
from generic_trainer.launchers._failures import Failure
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._local.engine import local_engine
from generic_trainer.launchers._packing import JobFolder
from generic_trainer.launchers._remote.log import published_log
from generic_trainer.launchers._supervisor import supervise_task
from generic_trainer.launchers._worker_end import WorkerEnd


def main(arguments: Sequence[str]) -> int:
    """Runs a task of a job and returns the exit code, which tells the class of a failure.

    Args:
        arguments: the folder of the job, and its digest.
    """
    return run(arguments)


def run(
    arguments: Sequence[str],
    *,
    set_up: Callable[[Distribution], None] = lambda distribution: None,
    publishes_log: bool = False,
) -> int:
    """Does what `main` does for a service with ways of its own.

    Args:
        arguments: see `main`.
        set_up: is called before the process looks for its place in `TF_CONFIG`.
        publishes_log: whether the chief's output goes into the folder, as the service does not
            show it while it is written.
    """
    path, digest = arguments
    folder = JobFolder(path)
    job = folder.read(digest)
    set_up(job.distribution)
    task = _own_task(job.distribution)
    is_shown = publishes_log and task == tasks(job.distribution)[0]
    with published_log(folder, task) if is_shown else contextlib.nullcontext():
        end = _run_task(job, task)
    folder.write_end(task, end)  # the log is there by then
    return end.status


def _run_task(job: Job, task: Task) -> WorkerEnd:
    """Runs the task that this process is for, and returns how it ended; a server never does."""
    if task.is_server:
        from generic_trainer.launchers._task import serve  # imports TensorFlow

        # As the first process of a container it would otherwise not be told to end.
        signal.signal(signal.SIGTERM, _exit)
        with shown_output():
            server = serve(job)
            while server:  # its threads do the work, and this one hears the signal
                signal.pause()
    return supervise_task(job, task, local_engine)


def _own_task(distribution: Distribution) -> Task:
    """Returns the task of this process; one that is alone has no TF_CONFIG."""
    return this_task() if cluster_addresses() else tasks(distribution)[0]


def _exit(signum: int, frame: Any) -> None:
    sys.exit(Failure.LOST.exit_code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
