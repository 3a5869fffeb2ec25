"""An engine without processes, in a time without waiting, for tests of the supervisor."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence

from generic_trainer._core.cluster import Task
from generic_trainer.launchers import Distribution, ExamplesFormat, Failure, Job, TrainingRequest
from generic_trainer.launchers._distribution import tasks
from generic_trainer.launchers._supervisor import Engine
from generic_trainer.launchers._worker_end import WorkerEnd
from generic_trainer.user_code import UserCode

__all__ = ["FakeEngine", "job_for", "lost", "succeeded", "terminate"]

POLL_S = 1.0


def job_for(distribution: Distribution) -> Job:
    """Returns a job that is never run."""
    request = TrainingRequest(
        user_code=UserCode("installed"),
        train_files=(),
        eval_files=(),
        split_files={},
        examples_format=ExamplesFormat(6),
        model_dir="/none/model",
        model_run_dir="/none/model_run",
        scratch_dir="/none/scratch",
    )
    return Job(request=request, fn_args_factory="none:none", distribution=distribution)


def succeeded(task: str = "worker 0") -> WorkerEnd:
    """Returns the end of a worker that did its part."""
    return WorkerEnd(task=task)


def lost(task: str = "worker 0", **fields: object) -> WorkerEnd:
    """Returns the end of a worker that was lost."""
    end = WorkerEnd(task=task, failure=Failure.LOST, error="WorkerLostError", message="was lost")
    return WorkerEnd(**{**vars(end), **fields})


def terminate() -> None:
    """Sends SIGTERM to this process."""
    os.kill(os.getpid(), signal.SIGTERM)


class FakeEngine(Engine):
    """An engine whose tasks end as a script says.

    Attributes:
        calls: names of the methods that were called, but for those that only ask.
        now_s: the time; each poll takes a second.
    """

    def __init__(
        self,
        *attempts: Sequence[WorkerEnd | Callable[[], object] | None],
        obeys: bool = True,
    ) -> None:
        """Notes the script.

        Args:
            attempts: for each attempt, what each poll comes to: an end, nothing, or something to
                call. After the last one nothing more happens.
            obeys: whether tasks end when they are told to stop.
        """
        self.calls: list[str] = []
        self.now_s = 0.0
        self._attempts = list(attempts)
        self._obeys = obeys
        self._script: list[WorkerEnd | Callable[[], object] | None] = []
        self._ends: list[WorkerEnd] = []
        self._tasks: list[Task] = []

    def open(self, job: Job) -> FakeEngine:
        """Takes the job."""
        self.job = job
        return self

    def clock(self) -> float:
        """Returns the time in seconds."""
        return self.now_s

    def start(self) -> None:
        """Begins the next attempt of the script."""
        self.calls.append("start")
        self._script = list(self._attempts.pop(0)) if self._attempts else []
        self._ends, self._tasks = [], list(tasks(self.job.distribution))

    def poll(self) -> Sequence[WorkerEnd]:
        """Takes a second, in which the next event of the script happens."""
        self.now_s += POLL_S
        event = self._script.pop(0) if self._script else None
        if isinstance(event, WorkerEnd):
            self._ends.append(event)
            self._tasks = [task for task in self._tasks if task.name != event.task]
        elif event is not None:
            event()
        return self._ends

    def running(self) -> Sequence[Task]:
        """Returns the tasks that have not ended."""
        return self._tasks

    def stop(self) -> None:
        """Tells all tasks to end."""
        self.calls.append("stop")
        if self._obeys:
            self._tasks = []

    def diagnose(self) -> str:
        """Returns a sentence."""
        self.calls.append("diagnose")
        return "They were in run_fn."

    def kill(self) -> None:
        """Ends the attempt."""
        self.calls.append("kill")
        self._tasks = []

    def close(self) -> None:
        """Notes that the run is over."""
        self.calls.append("close")
