"""Program of a container: `python -m generic_trainer.launchers._remote.program FOLDER DIGEST`."""

import logging
import os
import sys
from collections.abc import Sequence

from generic_trainer._core.cluster import TF_CONFIG, cluster_addresses, this_task
from generic_trainer.launchers._distribution import tasks
from generic_trainer.launchers._job import JobFolder
from generic_trainer.launchers._local.engine import LocalEngine
from generic_trainer.launchers._supervisor import supervise_task
from generic_trainer.launchers._vertex import cluster_variables

_logger = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Runs a task of a job and returns the exit code, which is that of the failure's class.

    Args:
        arguments: the folder of the job, and its digest.
    """
    folder = JobFolder(arguments[0])
    job = folder.read(arguments[1])
    if job.distribution.launcher == "vertex":  # whose own TF_CONFIG has other types of tasks
        os.environ.pop(TF_CONFIG, None)
        os.environ.update(cluster_variables(job.distribution))
    # A process that is alone has no TF_CONFIG.
    task = this_task() if cluster_addresses() else tasks(job.distribution)[0]
    end = supervise_task(job, task, LocalEngine)
    try:
        end.write(folder.end_of(task))
    except Exception as error:  # the exit code states the class of the failure
        _logger.warning("The end of %s is not written into %s: %s", task.name, folder.path, error)
    return end.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
