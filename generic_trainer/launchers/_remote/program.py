"""Program of a container: `python -m generic_trainer.launchers._remote.program FOLDER DIGEST`.

A service may lose a node on which a container still runs, and so cannot end it. The engine deletes
the folder of the job before it starts another attempt: then the container ends its worker, which
would write to the same checkpoints as those of that attempt.
"""

import contextlib
import functools
import logging
import sys
import time
from collections.abc import Sequence

from generic_trainer._core.cluster import cluster_addresses, this_task
from generic_trainer.errors import WorkerLostError
from generic_trainer.launchers._distribution import tasks
from generic_trainer.launchers._job import Job, JobFolder
from generic_trainer.launchers._local.engine import LocalEngine
from generic_trainer.launchers._registry import find_launcher
from generic_trainer.launchers._remote.service import FENCE_POLL_S
from generic_trainer.launchers._supervisor import supervise_task

_logger = logging.getLogger(__name__)


class _FencedEngine(LocalEngine):
    """Ends the worker of a job whose folder was deleted."""

    def __init__(self, job: Job, *, folder: JobFolder) -> None:
        super().__init__(job)
        self._job_folder = folder
        self._next_look_s = 0.0

    def check(self) -> None:
        super().check()
        if time.monotonic() < self._next_look_s:
            return
        self._next_look_s = time.monotonic() + FENCE_POLL_S
        is_deleted = False
        with contextlib.suppress(Exception):  # of the file system: the next look tries again
            is_deleted = self._job_folder.is_deleted()
        if is_deleted:
            raise WorkerLostError(
                f"The job has ended: its folder {self._job_folder.path} was deleted."
            )


def main(arguments: Sequence[str]) -> int:
    """Runs a task of a job and returns the exit code, which is that of the failure's class.

    Args:
        arguments: the folder of the job, and its digest.
    """
    folder = JobFolder(arguments[0])
    job = folder.read(arguments[1])
    find_launcher(job.distribution.launcher).set_tf_config(job.distribution)
    # A process that is alone has no TF_CONFIG.
    task = this_task() if cluster_addresses() else tasks(job.distribution)[0]
    end = supervise_task(job, task, functools.partial(_FencedEngine, folder=folder))
    try:
        end.write(folder.end_of(task))
    except Exception as error:  # the exit code states the class of the failure
        _logger.warning("The end of %s is not written into %s: %s", task.name, folder.path, error)
    return end.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
