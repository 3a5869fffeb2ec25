"""The steps after which a `fit` saves, and the one after which SIGTERM stops it.

Workers that train in step all save after the same steps and stop after the same one.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.signals import SigtermNotice
from generic_trainer.training.distributed import DataParallelStrategy

# Share of the time that saving may take where the interval is given in seconds.
_LARGEST_SHARE = 0.03
# The first steps trace and warm up; their time says little about those that follow.
_STEPS_TO_AGREE = 10

_TRAINING_JOBS = ("chief", "worker")
# How long a request may wait for an answer: the service keeps a note of each until the end.
_REQUEST_MS = 30_000
_NEVER = "never"

_fits = itertools.count()


class EverySteps:
    """Due when at least so many steps have passed."""

    def __init__(self, every_steps: int, first_step: int) -> None:
        self._every_steps = every_steps
        self._last_step = first_step

    def is_due(self, step: int) -> bool:
        return step - self._last_step >= self._every_steps

    def saved(self, step: int, cost_s: float) -> None:
        self._last_step = step


class EveryInterval:
    """Due when so much time has passed, and so much that saving takes at most 3 % of it."""

    def __init__(self, every_s: float, clock: Callable[[], float]) -> None:
        self._every_s = every_s
        self._clock = clock
        self._due_at_s = clock() + every_s

    def is_due(self, step: int) -> bool:
        return self._clock() >= self._due_at_s

    def saved(self, step: int, cost_s: float) -> None:
        self._due_at_s = self._clock() + max(self._every_s, cost_s / _LARGEST_SHARE)


class AgreedInterval:
    """The same for workers that must all save after the same step, whatever their clocks say."""

    def __init__(
        self,
        every_s: float,
        first_step: int,
        mean: Callable[[float], float],  # over all workers, which call it after the same step
        clock: Callable[[], float],
    ) -> None:
        self._every_s = every_s
        self._mean = mean
        self._clock = clock
        self._start_s = clock()
        self._first_step = first_step
        self._cost_s = 0.0
        self._due_step: int | None = None

    def is_due(self, step: int) -> bool:
        if self._due_step is None and step - self._first_step >= _STEPS_TO_AGREE:
            step_s = (self._clock() - self._start_s) / (step - self._first_step)
            interval_s = max(self._every_s, self._cost_s / _LARGEST_SHARE)
            self._due_step = step + max(1, round(self._mean(interval_s / max(step_s, 1e-9))))
        return self._due_step is not None and step >= self._due_step

    def saved(self, step: int, cost_s: float) -> None:
        self._start_s, self._first_step = self._clock(), step
        self._cost_s, self._due_step = cost_s, None


# Told of each step whether a checkpoint is due, and of those that were saved and what they cost.
Schedule: TypeAlias = EverySteps | EveryInterval | AgreedInterval


def make_schedule(
    every_steps: int | None,
    every_s: float,
    first_step: int,
    strategy: tf.distribute.Strategy,
    clock: Callable[[], float],
) -> Schedule:
    """Returns when a `fit` that starts at `first_step` saves; by time if `every_steps` is None."""
    if every_steps is not None:
        return EverySteps(every_steps, first_step)
    if not _tasks_of(strategy):
        return EveryInterval(every_s, clock)

    def mean(value: float) -> float:
        values = strategy.experimental_distribute_values_from_function(
            lambda _: tf.constant(value, tf.float64)
        )
        return float(strategy.reduce(tf.distribute.ReduceOp.MEAN, values, axis=None))

    return AgreedInterval(every_s, first_step, mean, clock)


def make_stop(notice: SigtermNotice, strategy: tf.distribute.Strategy) -> Stop:
    """Returns what tells the last step; of several workers, all make theirs for the same `fit`."""
    return _AgreedStop(notice, strategy) if _tasks_of(strategy) else Stop(notice)


class Stop:
    """Due as soon as this process was told to stop."""

    def __init__(self, notice: SigtermNotice) -> None:
        self._notice = notice

    def is_due(self, step: int) -> bool:
        return self._notice.received

    def close(self) -> None:
        pass


class _AgreedStop(Stop):
    """Due after the same step on all workers, when any of them was told to stop.

    That worker names the next step to the coordination service of the cluster, and begins it only
    when all workers know. No step ends without every worker, so none of them is past it by then.

    Source: how `tf.distribute.experimental.PreemptionCheckpointHandler` has workers agree.
    """

    def __init__(self, notice: SigtermNotice, strategy: tf.distribute.Strategy) -> None:
        super().__init__(notice)
        resolver = strategy.cluster_resolver
        self._service = internals.TF_EAGER_CONTEXT.get()()
        self._tasks = _tasks_of(strategy)
        self._task = f"{resolver.task_type}/{resolver.task_id}"
        self._name = f"generic_trainer/stop/{next(_fits)}"
        self._step: int | None = None
        self._is_open = True
        threading.Thread(target=self._listen, name=self._name, daemon=True).start()

    def is_due(self, step: int) -> bool:
        if self._step is None and self._notice.received:
            self._propose(str(step + 1))
            for task in self._tasks:
                self._service.get_config_key_value(f"{self._name}/knows/{task}")
        return self._step is not None and step >= self._step

    def close(self) -> None:
        # The other workers have come to the end of `fit` as well, or are gone already.
        self._is_open = False
        with contextlib.suppress(tf.errors.OpError):
            self._propose(_NEVER)

    def _propose(self, step: str) -> None:
        with contextlib.suppress(tf.errors.AlreadyExistsError):  # another worker was faster
            self._service.set_config_key_value(f"{self._name}/step", step)

    def _listen(self) -> None:
        step = None
        while step is None and self._is_open:
            try:
                step = self._service.get_config_key_value(f"{self._name}/step", _REQUEST_MS)
            except tf.errors.DeadlineExceededError:
                continue
            except tf.errors.OpError:
                return  # the cluster is gone, and with it the training
        if step is not None:
            self._step = None if step == _NEVER else int(step)
            with contextlib.suppress(tf.errors.OpError):
                self._service.set_config_key_value(f"{self._name}/knows/{self._task}", "yes")


def _tasks_of(strategy: tf.distribute.Strategy) -> list[str]:
    """Returns the tasks that train in step under a strategy, such as "worker/0"; [] if alone."""
    if not isinstance(strategy, (tf.distribute.MultiWorkerMirroredStrategy, DataParallelStrategy)):
        return []
    cluster = strategy.cluster_resolver.cluster_spec()
    jobs = [job for job in _TRAINING_JOBS if job in cluster.jobs]
    tasks = [f"{job}/{index}" for job in jobs for index in range(cluster.num_tasks(job))]
    return tasks if len(tasks) > 1 else []
