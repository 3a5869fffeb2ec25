"""The launcher `tfjob`."""

from __future__ import annotations

import logging

from generic_trainer._core.signals import SigtermNotice
from generic_trainer.errors import WorkerLostError
from generic_trainer.launchers._carried import with_carried_environment
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._options import TFJobOptions
from generic_trainer.launchers.local._limits import Deadline
from generic_trainer.launchers.tfjob._api import KubernetesApi
from generic_trainer.launchers.tfjob._attempt import Attempt

__all__ = ["run_as_tfjob"]

_logger = logging.getLogger(__name__)


def run_as_tfjob(job: Job) -> None:
    """Runs a job in the pods of a TFJob. See `Launcher`.

    1. The chief's log is shown while it is written; those of the others are Kubernetes' affair.
    2. SIGTERM deletes the TFJob, whose pods then have `preemption_grace_s` to save.
    3. When this process is killed, the TFJob goes on: give it a `timeout_s`, which Kubernetes
       keeps an eye on as well.
    """
    options = job.distribution.tfjob or TFJobOptions()
    job = with_carried_environment(job)
    api = KubernetesApi(options.namespace)
    deadline = Deadline(job.distribution.timeout_s)
    attempts = job.distribution.max_failures + 1
    with SigtermNotice() as stop:
        for number in range(1, attempts + 1):
            try:
                attempt = Attempt(job, api)
                with attempt.running():
                    attempt.watch(deadline, stop)
                return
            except WorkerLostError as error:
                if stop.received or number == attempts:
                    raise
                _logger.warning(
                    "%s Starting again, from the last checkpoint if there is one (failure %d of "
                    "the %d that max_failures allows).",
                    error,
                    number,
                    job.distribution.max_failures,
                )
