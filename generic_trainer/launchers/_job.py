"""What a launcher is given, and what it is."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, Protocol

from generic_trainer.launchers._distribution import Distribution
from generic_trainer.launchers._request import TrainingRequest

__all__ = ["Job", "Launcher"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A run, and where it takes place.

    Attributes:
        request: the run.
        fn_args_factory: import path, `"module:function"`, of what builds the argument of `run_fn`
            from the request and the directory to export into. A path, because it has to be found
            on other machines as well.
        distribution: on how many workers, and who starts them.
        rehearsal_dir: local directory that `export_fn` exports untrained weights into, in a job
            that is a rehearsal; None for one that trains.
    """

    request: TrainingRequest
    fn_args_factory: str
    distribution: Distribution = dataclasses.field(default_factory=Distribution)
    rehearsal_dir: str | None = None

    def make_fn_args(self, request: TrainingRequest, export_dir: str) -> Any:
        """Calls the factory."""
        module, _, function = self.fn_args_factory.partition(":")
        return getattr(importlib.import_module(module), function)(request, export_dir)


class Launcher(Protocol):
    """Runs `run_fn` on all workers of a job and returns when the chief has exported.

    Every launcher keeps to these rules, which `tests/launchers/test_contract.py` checks:

    1. The chief exports into the staging directory of the request, on storage that the executor
       sees; the others export into scratch.
    2. What the workers print goes to standard output and error of this process, live; with several
       workers each line tells whose it is.
    3. A failure becomes the error of its class (see `Failure`), with the traceback of the worker.
       Lost workers alone are replaced, `distribution.max_failures` times.
    4. When it returns or raises, nothing is left running.
    """

    def __call__(self, job: Job) -> None:
        """Runs the job.

        Raises:
            ModuleFileError: the user's module cannot be loaded.
            DataError: `run_fn` met a file or record that cannot be read.
            TrainingError: `run_fn` raised.
            WorkerHangError: a worker hangs, or `timeout_s` is over.
            WorkerLostError: a worker was lost more often than allowed, or this process is to stop.
            WorkerMemoryError: a worker ran out of memory.
            ConfigurationError: the engine cannot be reached, or not with these settings.
        """
