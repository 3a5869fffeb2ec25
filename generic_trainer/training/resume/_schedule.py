"""The steps after which a `fit` saves, and the one after which SIGTERM stops it.

Workers that train in step all save after the same steps and stop after the same one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import threading
from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.machine import available_cpus
from generic_trainer._core.signals import SigtermNotice
from generic_trainer.training.distributed import DataParallelStrategy

# Until workers ask again when to save, at most so many times the steps since the last checkpoint
# pass: the first steps trace and warm up, and their time says little about those that follow.
_FACTOR = 10
# The last of the time until a checkpoint, which is not worth another question.
_NEARLY = 0.02
# So many seconds of the processor time of one who writes can hinder a training in Python, by its
# lock: Python's part of it grows with the number of variables, hardly with their size.
_LOCKED_S = 0.02

_TRAINING_JOBS = ("chief", "worker")
# How long a request may wait for an answer: the service keeps a note of each until the end.
_REQUEST_MS = 30_000
_NEVER = "never"

_fits = itertools.count()
_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Frequency:
    """How often a fit saves.

    Attributes:
        steps: training steps from one checkpoint to the next; None counts seconds.
        seconds: from one checkpoint to the next.
        max_overhead: the largest share of the time of training that saving may take, for which
            checkpoints are further apart than that; None saves whatever it costs.

    Source of `max_overhead`: CheckFreq (Mohan et al., FAST '21), which tunes how often it saves by
    what that is measured to cost.
    """

    steps: int | None = None
    seconds: float = 60.0
    max_overhead: float | None = 0.01

    def rest_s(self, cost_s: float) -> float:
        """Returns how long training has to go on until a checkpoint of this cost is paid for."""
        return cost_s / self.max_overhead if self.max_overhead else 0.0


def cost_s(still_s: float, processor_s: float) -> float:
    """Returns what a checkpoint has cost training, in seconds.

    Args:
        still_s: how long training stood still for it.
        processor_s: processor time of the thread that wrote it beside training. It counts by its
            share of the processors, and where it is short, and much of it Python's, in full.
    """
    share_s = processor_s / len(available_cpus())
    return still_s + max(share_s, min(processor_s, _LOCKED_S))


class Alone:
    """Due when so many steps or seconds have passed, and the checkpoint before is paid for."""

    def __init__(self, frequency: Frequency, first_step: int, clock: Callable[[], float]) -> None:
        self._frequency, self._clock = frequency, clock
        self._last_step, self._last_s = first_step, clock()
        self._is_told = False

    def is_due(self, step: int, cost_s: float) -> bool:
        frequency, passed_s = self._frequency, self._clock() - self._last_s
        if frequency.steps is None:
            return passed_s >= max(frequency.seconds, frequency.rest_s(cost_s))
        if step - self._last_step < frequency.steps:
            return False
        rest_s = frequency.rest_s(cost_s)
        if passed_s < rest_s and not self._is_told:
            self._is_told = True
            _logger.info(
                "Checkpoints are further apart than every_steps=%d: one costs %.3g s of training, "
                "and max_overhead=%g allows for that every %.3g s.",
                *(frequency.steps, cost_s, frequency.max_overhead, rest_s),
            )
        return passed_s >= rest_s

    def saved(self, step: int) -> None:
        self._last_step, self._last_s = step, self._clock()


class Agreed:
    """The same for workers that must all save after the same step: the chief says after which.

    They ask for it after some of the steps only, all after the same ones.
    """

    def __init__(
        self,
        frequency: Frequency,
        first_step: int,
        of_chief: Callable[[int], int],  # for all workers, which call it after the same step
        clock: Callable[[], float],
    ) -> None:
        self._frequency, self._of_chief, self._clock = frequency, of_chief, clock
        self._ask_at = 0
        self.saved(first_step)

    def is_due(self, step: int, cost_s: float) -> bool:
        if step < self._ask_at:
            return False
        steps = self._of_chief(self._steps_left(step - self._last_step, cost_s))
        self._ask_at = step + steps
        return not steps

    def saved(self, step: int) -> None:
        self._last_step, self._last_s = step, self._clock()
        self._ask_at = step + (self._frequency.steps or _FACTOR)

    def _steps_left(self, steps: int, cost_s: float) -> int:
        passed_s = self._clock() - self._last_s
        wanted_s = self._frequency.rest_s(cost_s)
        if self._frequency.steps is None:
            wanted_s = max(wanted_s, self._frequency.seconds)
        left_s = wanted_s - passed_s
        if left_s <= _NEARLY * wanted_s:
            return 0
        return max(1, min(_FACTOR * steps, math.ceil(left_s * steps / max(passed_s, 1e-9))))


# Told of each step whether a checkpoint is due, given what the last one has cost, and of those that
# were saved.
Schedule: TypeAlias = Alone | Agreed


def make_schedule(
    frequency: Frequency,
    first_step: int,
    strategy: tf.distribute.Strategy,
    clock: Callable[[], float],
) -> Schedule:
    """Returns when a `fit` that starts at `first_step` saves."""
    is_exact = frequency.steps is not None and frequency.max_overhead is None
    if is_exact or not _tasks_of(strategy):
        return Alone(frequency, first_step, clock)

    def of_chief(steps: int) -> int:
        values = strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(
                0 if context.replica_id_in_sync_group else steps, tf.float64
            )
        )
        return int(strategy.reduce(tf.distribute.ReduceOp.SUM, values, axis=None))

    return Agreed(frequency, first_step, of_chief, clock)


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
