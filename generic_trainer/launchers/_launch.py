"""Chooses the launcher by its name."""

from __future__ import annotations

import importlib

from generic_trainer._core.output import kept_output
from generic_trainer.launchers._job import Job, Launcher

__all__ = ["launch", "launcher"]

_LAUNCHERS = {
    "in_process": ("generic_trainer.launchers._in_process", "run_in_process"),
    "local": ("generic_trainer.launchers.local", "run_local"),
    "ray": ("generic_trainer.launchers.ray", "run_on_ray"),
    "tfjob": ("generic_trainer.launchers.tfjob", "run_as_tfjob"),
}


def launch(job: Job) -> None:
    """Runs a job where its distribution says, and keeps what the workers print.

    Raises:
        GenericTrainerError: see `Launcher`.
    """
    run = launcher(job.distribution.launcher)
    with kept_output(job.request.log_path):
        run(job)


def launcher(name: str) -> Launcher:
    """Returns a launcher; what it needs is imported only now."""
    module, function = _LAUNCHERS[name]
    run: Launcher = getattr(importlib.import_module(module), function)
    return run
