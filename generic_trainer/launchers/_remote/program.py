"""Program of a container: `python -m generic_trainer.launchers._remote.program FOLDER DIGEST`."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Sequence

from generic_trainer._core.cluster import TF_CONFIG, Task, cluster_addresses, this_task
from generic_trainer._core.files import read_whole
from generic_trainer._core.output import kept_output
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer.launchers._distribution import Distribution, tasks
from generic_trainer.launchers._local.engine import local_engine
from generic_trainer.launchers._packing import JobFolder
from generic_trainer.launchers._supervisor import supervise_task
from generic_trainer.launchers._vertex.custom_job import cluster_variables

_logger = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Runs a task of a job and returns the exit code, which is that of the failure's class.

    Args:
        arguments: the folder of the job, and its digest.
    """
    folder = JobFolder(arguments[0])
    job = folder.read(arguments[1])
    is_on_vertex = job.distribution.launcher == "vertex"
    if is_on_vertex:  # whose own TF_CONFIG has other types of tasks
        os.environ.pop(TF_CONFIG, None)
        os.environ.update(cluster_variables(job.distribution))
    task = _own_task(job.distribution)
    # Vertex AI's service for logs is another one.
    is_kept = is_on_vertex and task == tasks(job.distribution)[0]
    with ScratchFolder("log-") as scratch:
        path = os.path.join(scratch, "log")
        with kept_output(path) if is_kept else contextlib.nullcontext():
            end = supervise_task(job, task, local_engine)
        log = read_whole(path) if is_kept else b""
    try:
        if is_kept:
            folder.write_log(log)
        folder.write_end(task, end)
    except Exception as error:  # the exit code states the class of the failure
        _logger.warning("The end of %s is not written into %s: %s", task.name, folder.path, error)
    return end.status


def _own_task(distribution: Distribution) -> Task:
    """Returns the task of this process; one that is alone has no TF_CONFIG."""
    return this_task() if cluster_addresses() else tasks(distribution)[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
