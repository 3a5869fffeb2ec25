"""Program of a pod: `python -m generic_trainer.launchers._tfjob.pod FOLDER DIGEST`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Any

from generic_trainer._core.cluster import Task, cluster_addresses, this_task
from generic_trainer._core.output import shown_output
from generic_trainer.launchers._distribution import tasks
from generic_trainer.launchers._failures import Failure
from generic_trainer.launchers._local.engine import local_engine
from generic_trainer.launchers._packing import JobFolder
from generic_trainer.launchers._supervisor import supervise_task
from generic_trainer.launchers._task import serve


def main(arguments: Sequence[str]) -> int:
    """Runs a task of a job and returns the exit code, which tells the class of a failure.

    Args:
        arguments: the folder of the job, and its digest.
    """
    path, digest = arguments
    folder = JobFolder(path)
    job = folder.read(digest)
    task = _own_task(tasks(job.distribution))
    if task.is_server:
        # As the first process of a container it would otherwise not be told to end.
        signal.signal(signal.SIGTERM, _exit)
        with shown_output():
            server = serve(job)
            while server:  # its threads do the work, and this one hears the signal
                signal.pause()
    end = supervise_task(job, task, local_engine)
    folder.write_end(task, end)
    return end.status


def _own_task(all_tasks: tuple[Task, ...]) -> Task:
    """Returns the task of this process; the operator gives a TFJob of one pod no TF_CONFIG."""
    return this_task() if cluster_addresses() else all_tasks[0]


def _exit(signum: int, frame: Any) -> None:
    sys.exit(Failure.LOST.exit_code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
