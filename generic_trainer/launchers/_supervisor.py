"""Supervision of a job: its engine, its attempts, its deadline, and the error of the run.

An `Engine` starts the tasks of a job, reports their ends, and stops them. The supervisor is the
same for all engines: it decides which failure is the root cause and whether another attempt
follows, and raises the errors for an exceeded time limit and SIGTERM.

Two workers train on Ray, and the node of worker 1 is lost::

    the node is lost                          Ray notices it some seconds later
    worker 0 raises UnavailableError          in an all-reduce: it misses worker 1. Its own
                                              supervisor waits 5 s, then reports the end
    poll: [worker 0]                          may be a consequence: poll on, at most 10 s
    poll: [worker 0, worker 1: lost]          a cause: the error is `WorkerLostError`
    engine.kill()                             nothing of this attempt may write any more
    engine.start()                            both again, from the last checkpoint

Without the waits the error would often name worker 0, and not the node that was lost.

| first seen | becomes | another attempt |
|---|---|---|
| the chief has ended well | success, whatever happens to the others afterwards | no |
| a worker was lost, or workers miss each other without a cause | `WorkerLostError` | yes |
| a worker raised, crashed or ran out of memory | that error | no |
| SIGTERM to this process | workers save and end, `WorkerLostError` | no |
| `timeout_s` is over, or `heartbeat_s` without progress | `WorkerHangError` with stacks | no |
"""

import contextlib
import dataclasses
import logging
import signal
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from generic_trainer._core.cluster import Task
from generic_trainer._core.progress import note
from generic_trainer._core.signals import SigtermNotice
from generic_trainer.errors import WorkerHangError, WorkerLostError
from generic_trainer.launchers._distribution import Distribution, tasks
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._worker_end import WorkerEnd, error_of, root_cause

# How long to wait for the root cause, if the first reported failure may be a consequence of it.
_LAST_WORDS_S = 10.0
# How long a task that lost its connection to another waits before it reports that. The report of
# the other task, or of the engine, is more specific and should arrive first.
_MISSES_OTHERS_S = 5.0

_logger = logging.getLogger(__name__)


class Engine(Protocol):
    """Starts, watches and ends the tasks of a job; the supervisor calls it from a single thread.

    An attempt begins with `start` and ends with `kill`; another one may follow, and `close` in the
    end. The methods without a need for code of the engine's own have a default here.
    """

    def start(self) -> None:
        """Starts all tasks.

        Raises:
            GenericTrainerError: the tasks cannot be started; see `Launcher`.
        """

    def poll(self) -> Sequence[WorkerEnd]:
        """Waits a moment, and returns the ends of tasks in this attempt so far, oldest first.

        Raises:
            GenericTrainerError: the engine failed, which ends the attempt.
        """

    def running(self) -> Sequence[Task]:
        """Returns the tasks that had not ended at the last `poll`."""

    def check(self) -> None:
        """Checks the running tasks; finds nothing by default.

        Raises:
            GenericTrainerError: the attempt cannot succeed, although no task has failed.
        """

    def stop(self) -> None:
        """Requests that all tasks save and end; where nothing can request that, it ends them."""
        self.kill()

    def diagnose(self) -> str:
        """Returns sentences about the state of the tasks, for an error; it may kill the tasks."""
        return ""

    def kill(self) -> None:
        """Ends all processes of the attempt."""

    def close(self) -> None:
        """Releases what all attempts share."""


def supervise(
    job: Job,
    engine_for: Callable[[Job], Engine],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Runs a job on an engine, and starts all workers again if one is lost.

    1. `timeout_s` limits all attempts together, from the time when the engine is made.
    2. On SIGTERM the workers save and end, and no further attempt follows.

    Args:
        job: the job to run.
        engine_for: makes the engine.
        clock: returns the current time in seconds.

    Raises:
        GenericTrainerError: see `Launcher`.
    """
    wanted = job.distribution
    attempts = wanted.max_failures + 1
    with contextlib.closing(engine_for(job)) as engine, SigtermNotice() as stop:
        # Once: a worker that is lost again and again must not prolong the run.
        deadline_s = None if wanted.timeout_s is None else clock() + wanted.timeout_s
        attempt = _Attempt(wanted, engine, stop, clock, deadline_s)
        for number in range(1, attempts + 1):
            try:
                attempt.run()
                return
            except WorkerLostError as error:
                if stop.received or number == attempts:
                    raise
                _logger.warning(
                    "%s Starting again, from the last checkpoint if there is one (failure %d of "
                    "the %d that max_failures allows).",
                    error,
                    number,
                    wanted.max_failures,
                )
                note(restart=str(error))


def supervise_task(job: Job, task: Task, engine_for: Callable[[Job], Engine]) -> WorkerEnd:
    """Runs one task of a job in a child process, on the machine where another engine placed it.

    It takes a second process to distinguish a crash from a kill, and a hang from slow work. The
    child gets the `TF_CONFIG` of this process.

    Args:
        job: the job, which is the same for all tasks.
        task: the task of this process.
        engine_for: makes the engine for processes of this machine.
    """
    alone = dataclasses.replace(
        job, distribution=_alone(job.distribution, task), serves=task.is_server
    )
    try:
        supervise(alone, engine_for)
    except BaseException as error:
        end = WorkerEnd.of(error, task.name)
        # TensorFlow raises an error or aborts the process if it cannot reach other tasks.
        crashed = end.fields.get("signal") == signal.SIGABRT.name
        if job.distribution.is_cluster and (end.may_be_consequence or crashed):
            time.sleep(_MISSES_OTHERS_S)
            end = dataclasses.replace(end, may_be_consequence=True)
        return end
    return WorkerEnd(task=task.name)


@dataclasses.dataclass(frozen=True)
class _Attempt:
    """One attempt: supervises all tasks from their start to their end.

    Attributes:
        distribution: the settings.
        engine: runs the tasks.
        stop: whether this process got SIGTERM.
        clock: returns the current time in seconds.
        deadline_s: the time at which `timeout_s` is over.
    """

    distribution: Distribution
    engine: Engine
    stop: SigtermNotice
    clock: Callable[[], float]
    deadline_s: float | None

    def run(self) -> None:
        """Runs all tasks; after the chief has succeeded, nothing fails the attempt.

        Raises:
            GenericTrainerError: the attempt failed.
        """
        try:
            note(phase="packing")
            self.engine.start()
            started = self.engine.running() or tasks(self.distribution)
            note(phase="training", tasks={task.name: "running" for task in started})
            self._wait_for_chief()
        except BaseException:  # Ctrl-C too: workers that go on would write checkpoints
            self.engine.kill()
            raise
        # The export is there: an error from here on would throw a trained model away.
        for end in (self._wait_for_others, self.engine.kill):
            try:
                end()
            except Exception as error:
                _logger.warning(
                    "Could not end the other workers after the chief's export: %s", error
                )

    def _wait_for_chief(self) -> None:
        chief = tasks(self.distribution)[0].name
        seen = 0
        while True:
            ends = self.engine.poll()
            if len(ends) > seen:
                note(tasks={end.task: end.failure.text if end.failure else "done" for end in ends})
            seen = len(ends)
            # First: the chief has exported, and a worker that fails after that spoils nothing.
            if any(end.task == chief and end.failure is None for end in ends):
                return
            if _failed(ends):
                raise self._error(ends)
            if self.stop.received:
                raise self._preempted()
            self.engine.check()
            if self.deadline_s is not None and self.clock() > self.deadline_s:
                raise WorkerHangError(
                    f"Training did not end within timeout_s={self.distribution.timeout_s:g} and "
                    f"was stopped. {self.engine.diagnose()}".rstrip()
                )

    def _wait_for_others(self) -> None:
        """Waits up to `worker_grace_s` for the other workers, then for the chief's process.

        The chief's process exits after the others have ended, or after that time.
        """
        chief = tasks(self.distribution)[0]
        end_s = self.clock() + self.distribution.worker_grace_s
        running = self._working()
        # The chief's process waits for the others, and so gets a little longer than they.
        while running and not self.stop.received and self.clock() < end_s + _LAST_WORDS_S:
            if chief not in running and self.clock() >= end_s:
                break
            self.engine.poll()
            running = self._working()
        if running and not self.stop.received:
            _logger.warning(
                "The chief has exported, but %s still worked %g s later (worker_grace_s) and was "
                "stopped. Its output is kept, but its unfinished work is lost. Make the chief wait "
                "for it, or allow more time. %s",
                ", ".join(task.name for task in running),
                self.distribution.worker_grace_s,
                self.engine.diagnose(),
            )

    def _working(self) -> list[Task]:
        return [task for task in self.engine.running() if not task.is_server]

    def _error(self, ends: Sequence[WorkerEnd]) -> Exception:
        if root_cause(_failed(ends)).may_be_consequence:
            ends = self._poll_until(_has_cause, _LAST_WORDS_S) or ends
        return error_of(_failed(ends), named=self.distribution.is_cluster)

    def _preempted(self) -> Exception:
        grace_s = self.distribution.preemption_grace_s
        self.engine.stop()
        self._poll_until(lambda _: False, grace_s)
        late = ", ".join(task.name for task in self.engine.running())
        return WorkerLostError(
            "SIGTERM: this process is to stop, and its workers were asked to save and end"
            + (f"; {late} took longer than {grace_s:g} s." if late else ".")
            + " The next run with the same inputs, code and hyperparameters resumes from the last "
            "checkpoint, if run_fn writes any."
        )

    def _poll_until(
        self, condition: Callable[[Sequence[WorkerEnd]], bool], timeout_s: float
    ) -> Sequence[WorkerEnd]:
        """Polls until a condition holds, no task is running, or the timeout is reached."""
        end_s = self.clock() + timeout_s
        ends: Sequence[WorkerEnd] = ()
        while self.engine.running() and not condition(ends) and self.clock() < end_s:
            ends = self.engine.poll()
        return ends


def _failed(ends: Sequence[WorkerEnd]) -> list[WorkerEnd]:
    return [end for end in ends if end.failure is not None]


def _has_cause(ends: Sequence[WorkerEnd]) -> bool:
    return any(not end.may_be_consequence for end in _failed(ends))


def _alone(distribution: Distribution, task: Task) -> Distribution:
    """Returns the settings for supervising one task of a distribution.

    Only a chief that trains itself must make progress; other tasks may wait for it legitimately.
    """
    trains = task == tasks(distribution)[0] and not distribution.parameter_servers
    hides_gpus = distribution.gpus_per_worker == 0
    return Distribution(
        launcher="local",
        gpus_per_worker=0 if hides_gpus else None,  # None: the GPUs that the engine assigned
        memory_mb_per_worker=distribution.memory_mb_per_worker,
        max_failures=0,
        preemption_grace_s=distribution.preemption_grace_s,
        heartbeat_s=distribution.heartbeat_s if trains else None,
        require_gpu=distribution.require_gpu,
        env=distribution.env,
    )
