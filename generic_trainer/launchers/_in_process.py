"""Training in the process of the executor."""

from __future__ import annotations

from generic_trainer.errors import TrainingError
from generic_trainer.launchers import _worker
from generic_trainer.launchers._failures import classify
from generic_trainer.launchers._job import Job

__all__ = ["run_in_process"]


def run_in_process(job: Job) -> None:
    """Calls `run_fn` here; a cluster may be described by `TF_CONFIG`. See `Launcher`."""
    try:
        _worker.run(job.request, job.make_fn_args)
    except TrainingError as error:
        kind = classify(error).error
        if isinstance(error, kind):
            raise
        raise kind(str(error)) from error.__cause__
