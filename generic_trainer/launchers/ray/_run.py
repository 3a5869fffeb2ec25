"""The launcher `ray`."""

from __future__ import annotations

from typing import Any

from generic_trainer._core.signals import SigtermNotice
from generic_trainer.errors import ConfigurationError, WorkerHangError, WorkerLostError
from generic_trainer.launchers._endings import Ending
from generic_trainer.launchers._failures import Failure
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._options import RayOptions
from generic_trainer.launchers._outcome import Outcome
from generic_trainer.launchers.local._limits import Deadline
from generic_trainer.launchers.ray._connection import connected
from generic_trainer.launchers.ray._last_output import shown_output
from generic_trainer.launchers.ray._payload import Payload

__all__ = ["run_on_ray"]

_POLL_S = 0.5
_NO_MODULE = "No module named"


def run_on_ray(job: Job) -> None:
    """Runs a job on a Ray cluster. See `Launcher`.

    1. SIGTERM stops the run; what Ray does with SIGTERM on its nodes is Ray's affair.
    2. `timeout_s` counts from the moment at which the cluster has answered.
    """
    payload = Payload.of(job)
    with shown_output() as shown, connected(job.distribution) as ray, SigtermNotice() as stop:
        ending = _ending(job, payload, ray, stop)
        if ending.worker is not None and ending.outcome.failure is not Failure.LOST:
            shown.wait_for(ending.worker)
    if ending.outcome.failure is not None:
        raise ending.outcome.to_error(ending.worker if job.distribution.is_cluster else None)


def _ending(job: Job, payload: Payload, ray: Any, stop: SigtermNotice) -> Ending:
    # Imported where Ray is known to be there.
    from generic_trainer.launchers.ray._submit import train_on_cluster

    options = job.distribution.ray or RayOptions()
    task = ray.remote(num_cpus=0, max_retries=0)(train_on_cluster)
    reference = task.remote(payload, options.connect_timeout_s)
    try:
        _wait(job, reference, ray, stop)
        ending: Ending = ray.get(reference)
        return ending
    except ray.exceptions.RayTaskError as error:
        raise _of_task(error) from error
    except ray.exceptions.RayError as error:
        raise WorkerLostError(
            f"The node that directs the training was lost, or Ray itself stopped: {error}"
        ) from error


def _wait(job: Job, reference: Any, ray: Any, stop: SigtermNotice) -> None:
    deadline = Deadline(job.distribution.timeout_s)
    while not ray.wait([reference], timeout=_POLL_S)[0]:
        if not (stop.received or deadline.is_over):
            continue
        ray.cancel(reference, force=True)
        if stop.received:
            raise WorkerLostError(
                "SIGTERM: this process is to stop, and its workers were stopped. The next run of "
                "the same inputs, code and hyperparameters goes on from the last checkpoint, if "
                "run_fn writes any."
            )
        raise WorkerHangError(
            f"Training did not end within timeout_s={deadline.timeout_s:g} and was stopped."
        )


def _of_task(error: Any) -> Exception:
    cause = error.cause
    if _NO_MODULE in str(cause):  # an ImportError, or one of Ray's that quotes it
        missing = next(line.strip() for line in str(cause).splitlines() if _NO_MODULE in line)
        return ConfigurationError(
            f"The nodes of the Ray cluster cannot run the job: {missing}. Install the same release "
            "of generic-trainer[ray] there as here, in the image of the cluster or with "
            "RayOptions(runtime_env={'pip': ['generic-trainer[ray]']})."
        )
    return Outcome.of(cause).to_error()
