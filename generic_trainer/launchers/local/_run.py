"""The launcher `local`."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from generic_trainer._core.signals import SigtermNotice
from generic_trainer.errors import WorkerLostError
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._job_file import job_to_json
from generic_trainer.launchers._members import members
from generic_trainer.launchers.local._attempt import Attempt
from generic_trainer.launchers.local._limits import Deadline
from generic_trainer.launchers.local._nursery import kept_nursery, nursery
from generic_trainer.launchers.local._placement import common_environment
from generic_trainer.launchers.local._ports import reserved_ports
from generic_trainer.launchers.local._processes import Processes
from generic_trainer.launchers.local._streams import prefixed

__all__ = ["run_local"]

_logger = logging.getLogger(__name__)


def run_local(job: Job) -> None:
    """Runs a job in child processes. See `Launcher`.

    1. A worker that crashes, is killed or hangs ends the attempt; this process goes on.
    2. SIGTERM is handed on; the workers have `preemption_grace_s` to save.
    3. When this process is killed, so are the workers and all that they have started.
    """
    deadline = Deadline(job.distribution.timeout_s)
    attempts = job.distribution.max_failures + 1
    with SigtermNotice() as stop, kept_nursery():
        for attempt in range(1, attempts + 1):
            try:
                _attempt(job, deadline, stop)
                return
            except WorkerLostError as error:
                if stop.received or attempt == attempts:
                    raise
                _logger.warning(
                    "%s Starting again, from the last checkpoint if there is one (failure %d of "
                    "the %d that max_failures allows).",
                    error,
                    attempt,
                    job.distribution.max_failures,
                )


def _attempt(job: Job, deadline: Deadline, stop: SigtermNotice) -> None:
    everyone = members(job.distribution)
    module = job.fn_args_factory.partition(":")[0]
    with (
        tempfile.TemporaryDirectory(prefix="generic-trainer-workers-") as folder,
        nursery(common_environment(job.distribution), ("tensorflow", module)) as source,
        reserved_ports(len(everyone)) as addresses,
        prefixed([member.name for member in everyone]) as streams,
    ):
        Path(folder, "job.json").write_text(job_to_json(job), encoding="utf-8")
        with Attempt(
            job.distribution,
            Processes(source, Path(folder)),
            addresses=dict(zip(everyone, addresses, strict=True)),
            streams=streams,
        ) as attempt:
            attempt.watch(deadline, stop)
