"""Engine of the launcher `ray`: submits a job to a Ray cluster and waits for its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from generic_trainer._core.cluster import Task
from generic_trainer.errors import ConfigurationError, WorkerLostError
from generic_trainer.launchers._distribution import tasks
from generic_trainer.launchers._failures import Failure
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._options import RayOptions
from generic_trainer.launchers._packing import pack
from generic_trainer.launchers._ray.connection import connected, placement_timeout_s
from generic_trainer.launchers._ray.output import ShownOutput, shown_output
from generic_trainer.launchers._worker_end import WorkerEnd, root_cause

_ON_CLUSTER = f"{__package__}.cluster:train_on_cluster"
_POLL_S = 0.5


@contextlib.contextmanager
def ray_engine(job: Job) -> Iterator[RayEngine]:
    """Opens the engine: connects to the cluster.

    Raises:
        ConfigurationError: see `connected`.
        ModuleFileError: the user's code cannot be read.
    """
    packed = pack(job)
    with shown_output() as shown, connected(job.distribution) as ray:
        yield RayEngine(job, packed, ray, shown)


class RayEngine:
    """A task on a Ray cluster, which has Ray Train run the job; see `Engine`."""

    def __init__(self, job: Job, packed: dict[str, Any], ray: Any, shown: ShownOutput) -> None:
        self._tasks = tasks(job.distribution)
        self._timeout_s = placement_timeout_s(job.distribution.ray or RayOptions())
        self._packed, self._ray, self._shown = packed, ray, shown
        self._reference: Any = None
        self._ends: list[WorkerEnd] = []

    def start(self) -> None:
        """Submits the job."""
        self._ends = []
        call = self._ray.remote(num_cpus=0, max_retries=0)(sent_by_value())
        self._reference = call.remote(_ON_CLUSTER, self._packed, self._timeout_s)

    def poll(self) -> Sequence[WorkerEnd]:
        """Waits a moment for the end of the job, and returns those of its workers.

        Raises:
            ConfigurationError: the nodes cannot run the job.
            WorkerLostError: the node that directs the training was lost.
            GenericTrainerError: what else went wrong on that node.
        """
        ray, reference = self._ray, self._reference
        if reference is None or not ray.wait([reference], timeout=_POLL_S)[0]:
            return self._ends
        self._reference = None
        try:
            answer = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise WorkerEnd.of(error.cause).to_error(named=False) from error
        except ray.exceptions.RayError as error:
            raise WorkerLostError(
                f"The node that directs the training was lost, or Ray itself stopped: {error}"
            ) from error
        if isinstance(answer, str):
            raise ConfigurationError(
                f"The nodes of the Ray cluster cannot run the job: {answer}. Install the same "
                "release of generic-trainer[ray] there as here, in the image of the cluster or "
                "with RayOptions(runtime_env={'pip': ['generic-trainer[ray]']})."
            )
        self._ends = [WorkerEnd.from_dict(values) for values in answer]
        self._wait_for_last_lines()
        return self._ends

    def running(self) -> Sequence[Task]:
        """Returns all tasks until the job has ended, which is when Ray tells of them."""
        return self._tasks if self._reference is not None else ()

    def check(self) -> None:
        """Does nothing: each worker is watched on its node."""

    def stop(self) -> None:
        """Stops the job at once."""
        if self._reference is not None:
            self._ray.cancel(self._reference, force=True)
            self._reference = None

    def diagnose(self) -> str:
        """Returns nothing: where the workers are is known on their nodes only."""
        return ""

    def kill(self) -> None:
        """Stops the job if it has not ended."""
        self.stop()

    def _wait_for_last_lines(self) -> None:
        failed = [end for end in self._ends if end.failure is not None]
        last = root_cause(failed) if failed else self._ends[0]
        # After a loss there may be another attempt, and the worker does not say that it has ended.
        if last.task is not None and last.failure is not Failure.LOST:
            self._shown.wait_for(last.task)


def sent_by_value() -> Callable[..., Any]:
    """Returns a function that Ray sends whole, and not by its name: it runs without this package.

    It returns what cannot be imported on the node, as a text, or else what its target returns.
    """

    def call(target: str, *arguments: Any) -> Any:
        import importlib

        module, _, function = target.partition(":")
        try:
            run = getattr(importlib.import_module(module), function)
        except ImportError as error:
            return str(error)
        return run(*arguments)

    return call
