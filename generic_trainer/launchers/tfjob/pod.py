"""What a pod of a TFJob runs: `python -m generic_trainer.launchers.tfjob.pod FOLDER`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Any

from generic_trainer._core.cluster import cluster_addresses, this_task
from generic_trainer.launchers._failures import Failure
from generic_trainer.launchers._member_process import outcome_in_child
from generic_trainer.launchers._members import Member, members
from generic_trainer.launchers._take_part import take_part
from generic_trainer.launchers.tfjob._folder import JobFolder

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Takes part in a job and returns the exit code, which tells the class of a failure.

    Args:
        arguments: the folder of the job.
    """
    folder = JobFolder(arguments[0])
    job = folder.read()
    member = _member(members(job.distribution))
    if member.is_server:
        # As the first process of a container it would otherwise not be told to end.
        signal.signal(signal.SIGTERM, _exit)
        take_part(job)
    outcome = outcome_in_child(job, member)
    folder.write_outcome(member, outcome)
    return outcome.exit_code


def _member(everyone: tuple[Member, ...]) -> Member:
    """Returns who this process is; the operator gives a TFJob of one pod no TF_CONFIG."""
    if not cluster_addresses():
        return everyone[0]
    task = this_task()
    return next(one for one in everyone if (one.task, one.index) == (task.type, task.index))


def _exit(signum: int, frame: Any) -> None:
    sys.exit(Failure.LOST.exit_code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
