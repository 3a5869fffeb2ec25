"""Supervision of a job: its engine, its attempts, its deadline, and the error of the run.

An `Engine` starts the tasks of a job, tells how they have ended, and ends them. What that means
for the run is decided here, alike for all engines: which failure is the root cause, whether there
is another attempt, and what is said when the time is up or this process is to stop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from generic_trainer._core.cluster import Task, cluster_addresses, is_in_a_cluster, this_task
from generic_trainer._core.machine import children, command_line
from generic_trainer._core.output import kept_output
from generic_trainer._core.progress import note
from generic_trainer._core.signals import SigtermNotice
from generic_trainer._core.texts import shown
from generic_trainer.errors import (
    ConfigurationError,
    TrainingError,
    WorkerHangError,
    WorkerLostError,
)
from generic_trainer.launchers._distribution import Distribution, tasks
from generic_trainer.launchers._failures import classify, explain
from generic_trainer.launchers._job import Job
from generic_trainer.launchers._worker_end import WorkerEnd, error_of, root_cause

_ENGINES = {
    "local": "_local.engine:local_engine",
    "tfjob": "_kubernetes.engines:tfjob_engine",
    "trainjob": "_kubernetes.engines:trainjob_engine",
    "vertex": "_vertex.engine:vertex_engine",
}
# It supervises in a process of its own.
_RAY = "_ray.driver:launch_on_ray"
# How long the others may take when one has failed and it is not yet clear which was the first.
_LAST_WORDS_S = 10.0
# How long a task that misses another one waits before it says so: that one, or the engine, has
# more to say about it.
_MISSES_OTHERS_S = 5.0

_logger = logging.getLogger(__name__)


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


class Engine(Protocol):
    """Where the tasks of a job run; the supervisor calls it in one thread.

    An attempt begins with `start` and ends with `kill`; there may be several, one after the other.
    """

    def start(self) -> None:
        """Starts all tasks.

        Raises:
            GenericTrainerError: they cannot be started; see `Launcher`.
        """

    def poll(self) -> Sequence[WorkerEnd]:
        """Waits a moment, and returns how tasks of this attempt have ended, the first one first.

        Raises:
            GenericTrainerError: the engine has failed, and the attempt with it.
        """

    def running(self) -> Sequence[Task]:
        """Returns the tasks that had not ended at the last `poll`."""

    def check(self) -> None:
        """Looks at tasks that run.

        Raises:
            GenericTrainerError: the attempt cannot end well, though no task has failed.
        """

    def stop(self) -> None:
        """Tells all tasks to save and end."""

    def diagnose(self) -> str:
        """Returns where the tasks are, as sentences for an error; it may cost them their lives."""

    def kill(self) -> None:
        """Ends what still runs of the attempt; nothing is left of it on return."""


def launch(job: Job) -> None:
    """Runs a job where its distribution says, and keeps what the workers print.

    Raises:
        GenericTrainerError: see `Launcher`.
    """
    name = job.distribution.launcher
    _refuse_a_cluster_in_a_cluster(job.distribution)
    with kept_output(job.request.log_path):
        if name == "in_process":
            _train_here(job)
            return
        # What an engine needs is imported only now.
        if name == "ray":
            _found(_RAY)(job)
        else:
            supervise(job, _found(_ENGINES[name]))


def _refuse_a_cluster_in_a_cluster(distribution: Distribution) -> None:
    """Raises where this process is one of several, each of which would start all the workers.

    One child process of this machine takes the place that this process has among them.
    """
    if distribution.launcher == "in_process" or not is_in_a_cluster():
        return
    if distribution.is_cluster or distribution.launcher != "local":
        raise ConfigurationError(
            f"launcher={distribution.launcher!r} is to start {distribution.num_processes} "
            f"processes, but this one is part of a cluster already: TF_CONFIG says that it is "
            f"{this_task().name} of {shown(cluster_addresses())}. Use launcher='in_process' "
            "there, or unset TF_CONFIG."
        )


def supervise(
    job: Job,
    engine_for: Callable[[Job], contextlib.AbstractContextManager[Engine]],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Runs a job on an engine; lost workers are replaced by starting all of them again.

    1. `timeout_s` counts over all attempts, from the moment at which the engine is there.
    2. SIGTERM has the workers save and end, and there is no other attempt.

    Args:
        job: what to run.
        engine_for: opens the engine.
        clock: tells the time in seconds.

    Raises:
        GenericTrainerError: see `Launcher`.
    """
    attempts = job.distribution.max_failures + 1
    with engine_for(job) as engine, SigtermNotice() as stop:
        attempt = _Attempt(job.distribution, engine, stop, clock)
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
                    job.distribution.max_failures,
                )
                note(restart=str(error))


def supervise_task(
    job: Job,
    task: Task,
    engine_for: Callable[[Job], contextlib.AbstractContextManager[Engine]],
    *,
    wait: Callable[[float], object] = time.sleep,
) -> WorkerEnd:
    """Runs one task of a job, on the machine where another engine has put it.

    Only from outside can a crash be told from a kill, and a hang from work. `TF_CONFIG` is that of
    this process.

    Args:
        job: what all tasks have in common.
        task: the one that this process is for; no server.
        engine_for: opens the engine for processes of this machine.
        wait: waits for a number of seconds, or until nobody needs to know how the task ended.
    """
    alone = dataclasses.replace(job, distribution=_alone(job.distribution, task))
    try:
        supervise(alone, engine_for)
    except BaseException as error:
        end = WorkerEnd.of(error, task.name)
        # TensorFlow has raised because it missed other tasks, or has aborted the process.
        misses_others = end.may_be_consequence or end.signal == signal.SIGABRT.name
        if job.distribution.is_cluster and misses_others:
            wait(_MISSES_OTHERS_S)
            end = dataclasses.replace(end, may_be_consequence=True)
        return end
    return WorkerEnd(task=task.name)


class _Attempt:
    """The watch over all tasks from their start to their end."""

    def __init__(
        self,
        distribution: Distribution,
        engine: Engine,
        stop: SigtermNotice,
        clock: Callable[[], float],
    ) -> None:
        self._distribution, self._engine = distribution, engine
        self._stop, self._clock = stop, clock
        self._tasks = tasks(distribution)
        self._chief = self._tasks[0]
        timeout_s = distribution.timeout_s
        self._deadline_s = None if timeout_s is None else clock() + timeout_s

    def run(self) -> None:
        """Returns when the chief has done its part."""
        try:
            note(phase="packing")
            self._engine.start()
            note(phase="training", tasks={each.name: "running" for each in self._tasks})
            self._watch()
        finally:
            self._engine.kill()

    def _watch(self) -> None:
        over_s: float | None = None
        seen = 0
        while True:
            ends = self._engine.poll()
            if len(ends) > seen:
                note(tasks={end.task: end.failure.value if end.failure else "done" for end in ends})
            seen = len(ends)
            if any(end.task == self._chief.name and end.failure is None for end in ends):
                over_s = over_s or self._clock() + self._distribution.worker_grace_s
                if self._is_over(over_s):
                    return
                if self._chief not in self._engine.running():
                    continue  # the others can spoil nothing any more
            elif _failed(ends):
                raise self._error(ends)
            elif self._stop.received:
                raise self._preempted()
            self._engine.check()
            if self._deadline_s is not None and self._clock() > self._deadline_s:
                raise WorkerHangError(
                    f"Training did not end within timeout_s={self._distribution.timeout_s:g} and "
                    f"was stopped. {self._engine.diagnose()}".rstrip()
                )

    def _is_over(self, over_s: float) -> bool:
        """Whether the chief, which has done its part, is gone, and the others had their time."""
        running = [task for task in self._engine.running() if not task.is_server]
        if not running or self._stop.received:
            return True
        if self._chief in running or self._clock() < over_s:
            return False
        names = ", ".join(task.name for task in running)
        _logger.warning(
            "The chief has exported, but %s still worked %g s later (worker_grace_s) and was "
            "stopped. What it has printed is kept; what it would have done is lost. Have the chief "
            "wait for it, or allow more time. %s",
            names,
            self._distribution.worker_grace_s,
            self._engine.diagnose(),
        )
        return True

    def _error(self, ends: Sequence[WorkerEnd]) -> Exception:
        if root_cause(_failed(ends)).may_be_consequence:
            ends = self._poll_until(_has_cause, _LAST_WORDS_S) or ends
        return error_of(_failed(ends), named=self._distribution.is_cluster)

    def _preempted(self) -> Exception:
        grace_s = self._distribution.preemption_grace_s
        self._engine.stop()
        self._poll_until(lambda _: False, grace_s)
        late = ", ".join(task.name for task in self._engine.running())
        return WorkerLostError(
            "SIGTERM: this process is to stop, and its workers were told to save and end"
            + (f"; {late} took longer than {grace_s:g} s." if late else ".")
            + " The next run of the same inputs, code and hyperparameters goes on from the last "
            "checkpoint, if run_fn writes any."
        )

    def _poll_until(
        self, is_so: Callable[[Sequence[WorkerEnd]], bool], timeout_s: float
    ) -> Sequence[WorkerEnd]:
        """Polls until something is so, no task runs, or the time is over."""
        end_s = self._clock() + timeout_s
        ends: Sequence[WorkerEnd] = ()
        while self._engine.running() and not is_so(ends) and self._clock() < end_s:
            ends = self._engine.poll()
        return ends


def _failed(ends: Sequence[WorkerEnd]) -> list[WorkerEnd]:
    return [end for end in ends if end.failure is not None]


def _has_cause(ends: Sequence[WorkerEnd]) -> bool:
    return any(not end.may_be_consequence for end in _failed(ends))


def _found(path: str) -> Any:
    module, _, function = path.partition(":")
    return getattr(importlib.import_module(f"{__package__}.{module}"), function)


def _train_here(job: Job) -> None:
    # Imported only now: whoever sends jobs to other machines needs no more than that.
    from generic_trainer.launchers._task import train

    note(phase="training")
    before = children(os.getpid())
    try:
        train(job)
    except TrainingError as error:
        kind = classify(error).error
        if isinstance(error, kind):
            raise
        raise kind(explain(error)) from error.__cause__
    finally:
        _tell_of_left_behind(set(children(os.getpid())) - set(before))


def _tell_of_left_behind(pids: Iterable[int]) -> None:
    """Names processes that go on; they are not killed, as this one may be a notebook."""
    running = [f"{pid} ({command})" for pid in sorted(pids) if (command := command_line(pid))]
    if running:
        _logger.info(
            "Started while run_fn ran, and still running: %s. They go on without this run, and "
            "what they print is not kept; launcher='local' ends what run_fn has started.",
            ", ".join(running),
        )


def _alone(distribution: Distribution, task: Task) -> Distribution:
    """Returns the part of the distribution that is about one task.

    Only a chief that trains itself is watched for doing nothing: the others may well wait for it.
    """
    trains = task == tasks(distribution)[0] and not distribution.parameter_servers
    return Distribution(
        launcher="local",
        gpus_per_worker=0 if distribution.gpus_per_worker == 0 else None,  # else as the engine says
        memory_mb_per_worker=distribution.memory_mb_per_worker,
        max_failures=0,
        preemption_grace_s=distribution.preemption_grace_s,
        heartbeat_s=distribution.heartbeat_s if trains else None,
        require_gpu=distribution.require_gpu,
        env=distribution.env,
    )
