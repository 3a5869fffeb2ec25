"""Program of a replica: `python -m generic_trainer.launchers._vertex.program FOLDER DIGEST`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from generic_trainer._core.cluster import TF_CONFIG
from generic_trainer.launchers._distribution import tasks
from generic_trainer.launchers._packing import JobFolder
from generic_trainer.launchers._remote.log import published_log
from generic_trainer.launchers._remote.program import own_task, run_own_task
from generic_trainer.launchers._vertex.custom_job import tf_config


def main(arguments: Sequence[str]) -> int:
    """Runs a task of a job and returns the exit code, which tells the class of a failure.

    Args:
        arguments: the folder of the job, and its digest.
    """
    path, digest = arguments
    folder = JobFolder(path)
    job = folder.read(digest)
    os.environ.pop(TF_CONFIG, None)  # Vertex AI's own has other types of tasks
    if (config := tf_config(job.distribution)) is not None:
        os.environ[TF_CONFIG] = config
    task = own_task(job.distribution)
    with contextlib.ExitStack() as stack:
        if task == tasks(job.distribution)[0]:
            stack.enter_context(published_log(folder, task))
        end = run_own_task(job, task)
    folder.write_end(task, end)  # the log is there by then
    return end.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
