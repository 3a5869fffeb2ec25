"""Engine of the launcher `ray`: submits a job to a Ray cluster and waits for its end."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from generic_trainer._core.cluster import Task
from generic_trainer.errors import ConfigurationError, GenericTrainerError, WorkerLostError
from generic_trainer.launchers._distribution import tasks
from generic_trainer.launchers._failures import Failure
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._options import RayOptions
from generic_trainer.launchers._packing import pack
from generic_trainer.launchers._ray.attempts import ask
from generic_trainer.launchers._ray.connection import connected, give_back, placement_timeout_s
from generic_trainer.launchers._ray.output import ShownOutput, shown_output
from generic_trainer.launchers._worker_end import WorkerEnd, root_cause

_ON_CLUSTER = f"{__package__}.cluster:train_on_cluster"
_POLL_S = 0.5
# How long workers may take to stop, and to go; then they are killed.
_STOP_S, _LEAVE_S = 15.0, 10.0


@contextlib.contextmanager
def ray_engine(job: Job) -> Iterator[RayEngine]:
    """Opens the engine: connects to the cluster.

    Raises:
        ConfigurationError: see `connected`.
        ModuleFileError: the user's code cannot be read.
    """
    packed = pack(job)
    with (
        shown_output() as shown,
        connected(job.distribution) as ray,
        contextlib.closing(RayEngine(job, packed, ray, shown)) as engine,
    ):
        yield engine


class RayEngine:
    """An actor on a Ray cluster, which has Ray Train run the job; see `Engine`."""

    def __init__(self, job: Job, packed: dict[str, Any], ray: Any, shown: ShownOutput) -> None:
        self._tasks = tasks(job.distribution)
        self._timeout_s = placement_timeout_s(job.distribution.ray or RayOptions())
        self._packed, self._ray, self._shown = packed, ray, shown
        self._room = f"generic-trainer-{uuid.uuid4().hex}"
        # The actor that directs the training, what it returns when the job is over, and what it
        # tells before.
        self._director: Any = None
        self._job: Any = None
        self._told: Any = None
        self._ends: list[WorkerEnd] = []

    def start(self) -> None:
        """Submits the job, or has its workers begin again."""
        self._ends = []
        if self._director is None:
            # Each worker has two calls under way, and so have the engine and the controller.
            calls = 2 * len(self._tasks) + 8
            actor = self._ray.remote(num_cpus=0, max_concurrency=calls)(sent_by_value())
            self._director = actor.remote()
        if self._job is None:
            arguments = (self._packed, self._timeout_s, self._room)
            self._job = self._director.call.remote(_ON_CLUSTER, *arguments)
        else:
            self._get(ask(self._director, "begin"))
        self._told = ask(self._director, "wait_for_ends", 0)

    def poll(self) -> Sequence[WorkerEnd]:
        """Waits a moment for failures or the end of the job, and returns how workers have ended.

        Raises:
            ConfigurationError: the nodes cannot run the job.
            WorkerLostError: the node that directs the training was lost.
            GenericTrainerError: what else went wrong on that node.
        """
        if self._job is None:
            return self._ends
        ready = self._ray.wait([self._job, self._told], timeout=_POLL_S)[0]
        if not ready:
            return self._ends
        answer = self._get(ready[0])
        if ready[0] == self._job:
            self._job = None
        if isinstance(answer, str):
            raise ConfigurationError(
                f"The nodes of the Ray cluster cannot run the job: {answer}. Install the same "
                "release of generic-trainer[ray] there as here, in the image of the cluster or "
                "with RayOptions(runtime_env={'pip': ['generic-trainer[ray]']})."
            )
        self._ends = [WorkerEnd.from_dict(values) for values in answer]
        if self._job is not None:
            self._told = ask(self._director, "wait_for_ends", len(self._ends))
        if self._ends:
            self._wait_for_last_lines()
        return self._ends

    def running(self) -> Sequence[Task]:
        """Returns all tasks until the job has ended, which is when Ray tells of them."""
        return self._tasks if self._job is not None else ()

    def check(self) -> None:
        """Does nothing: each worker is watched on its node."""

    def stop(self) -> None:
        """Stops the job at once."""
        if self._director is not None:
            self._ray.kill(self._director)  # all that runs for the job ends with it
            give_back(self._ray, self._room)
        self._director = self._job = None

    def diagnose(self) -> str:
        """Returns nothing: where the workers are is known on their nodes only."""
        return ""

    def kill(self) -> None:
        """Has the workers stop training; stops the job if they do not."""
        if self._job is None:
            return
        stopped = ask(self._director, "end")
        ready = self._ray.wait([stopped, self._job], timeout=_STOP_S)[0]
        if ready != [stopped]:
            self.stop()
            return
        with contextlib.suppress(GenericTrainerError):  # there is nothing left then
            self._get(stopped)

    def close(self) -> None:
        """Lets the workers go, and stops the job if they do not."""
        if self._job is not None:
            ask(self._director, "close")
            self._ray.wait([self._job], timeout=_LEAVE_S)
        self.stop()

    def _get(self, reference: Any) -> Any:
        """Returns an answer of the director.

        Raises:
            WorkerLostError: it was lost.
            GenericTrainerError: what else went wrong where it is.
        """
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            self.stop()
            raise WorkerEnd.of(error.cause).to_error(named=False) from error
        except self._ray.exceptions.RayError as error:
            self.stop()
            raise WorkerLostError(
                f"The node that directs the training was lost, or Ray itself stopped: {error}"
            ) from error

    def _wait_for_last_lines(self) -> None:
        failed = [end for end in self._ends if end.failure is not None]
        last = root_cause(failed) if failed else self._ends[0]
        # After a loss there may be another attempt, and the worker does not say that it has ended.
        if last.task is not None and last.failure is not Failure.LOST:
            self._shown.wait_for(last.task)


def sent_by_value() -> type:
    """Returns a class that Ray sends whole, and not by its name: it works without this package."""

    class Director:
        def call(self, target: str, *arguments: Any) -> Any:
            """Returns what its target does, or what cannot be imported on the node, as a text."""
            import importlib

            module, _, function = target.partition(":")
            try:
                run = getattr(importlib.import_module(module), function)
            except ImportError as error:
                return str(error)
            return run(*arguments)

    return Director
