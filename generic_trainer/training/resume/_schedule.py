"""The steps after which a `fit` saves, and the one after which SIGTERM stops it.

Workers that train in step all save after the same steps and stop after the same one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from generic_trainer._core.signals import SigtermNotice
from generic_trainer.training.distributed import DataParallelStrategy, runtime

# Until workers ask again when to save, at most so many times the steps since the last checkpoint
# pass: the first steps trace and warm up, and their time says little about those that follow.
_FACTOR = 10
# The last of the time until a checkpoint, which is not worth another question.
_NEARLY = 0.02

_NEVER = "never"

_fits = itertools.count()


@dataclasses.dataclass(frozen=True)
class Frequency:
    """How often a fit saves.

    Attributes:
        steps: training steps from one checkpoint to the next; None counts seconds.
        seconds: from one checkpoint to the next.
        max_overhead: the largest share of the time of training that saving may take, for which
            checkpoints are further apart than `seconds`; None saves at any cost.

    Source of `max_overhead`: CheckFreq (Mohan et al., FAST '21), which tunes its frequency by the
    measured cost.
    """

    steps: int | None = None
    seconds: float = 60.0
    max_overhead: float | None = None


class Schedule:
    """The steps after which a fit saves.

    Workers that must all save after the same step count steps, or have the chief decide by its
    clock: they ask it after some of the steps only, all after the same ones.
    """

    def __init__(
        self,
        frequency: Frequency,
        of_chief: Callable[[int], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts counting.

        Args:
            frequency: of the checkpoints.
            of_chief: returns, in all workers, the number that the chief passes; None if alone.
            clock: returns the time in seconds.
        """
        self._frequency, self._of_chief, self._clock = frequency, of_chief, clock
        self.saved(0)

    def saved(self, step: int) -> None:
        """Starts counting anew."""
        self._last_step, self._last_s = step, self._clock()
        self._ask_at = step + _FACTOR

    def is_due(self, step: int, cost_s: float) -> bool:
        """Returns whether to save after a step.

        Args:
            step: the steps that are done.
            cost_s: seconds of training that the last checkpoint cost.
        """
        frequency, steps = self._frequency, step - self._last_step
        if frequency.steps is not None:
            return steps >= frequency.steps
        if self._of_chief is not None and step < self._ask_at:
            return False
        rest_s = cost_s / frequency.max_overhead if frequency.max_overhead else 0.0
        wanted_s, passed_s = max(frequency.seconds, rest_s), self._clock() - self._last_s
        if self._of_chief is None:
            return passed_s >= wanted_s
        steps_left = 0
        if wanted_s - passed_s > _NEARLY * wanted_s:
            expected = math.ceil((wanted_s - passed_s) * steps / max(passed_s, 1e-9))
            steps_left = max(1, min(_FACTOR * steps, expected))
        steps_left = int(self._of_chief(steps_left))
        self._ask_at = step + steps_left
        return not steps_left


class Stop:
    """Due after the same step on all workers, as soon as any of them has got SIGTERM.

    That worker publishes the next step, and begins it only when all workers know. No step ends
    without every worker, so none of them is past it by then.

    Source: how `tf.distribute.experimental.PreemptionCheckpointHandler` has workers agree.
    """

    def __init__(self, notice: SigtermNotice, strategy: tf.distribute.Strategy) -> None:
        """Begins to listen; all workers make theirs for the same `fit`."""
        self._notice, self._connected = notice, connected(strategy)
        self._step: int | None = None
        if self._connected is not None:
            self._name = f"stop/{next(_fits)}"
            self._is_open = True
            threading.Thread(target=self._listen, name=self._name, daemon=True).start()

    def is_due(self, step: int) -> bool:
        """Returns whether to stop after a step."""
        if self._connected is None:
            return self._notice.received
        if self._step is None and self._notice.received:
            self._connected.publish(f"{self._name}/step", step + 1)
            for rank in range(self._connected.size):
                while self._connected.published(f"{self._name}/knows/{rank}") is None:
                    pass
        return self._step is not None and step >= self._step

    def close(self) -> None:
        """Ends listening."""
        # The other workers have come to the end of `fit` as well, or are gone already.
        if self._connected is not None:
            self._is_open = False
            with contextlib.suppress(tf.errors.OpError):
                self._connected.publish(f"{self._name}/step", _NEVER)

    def _listen(self) -> None:
        step = None
        # After an error the cluster is gone, and with it the training.
        with contextlib.suppress(tf.errors.OpError):
            while step is None and self._is_open:
                step = self._connected.published(f"{self._name}/step")
            self._step = None if step == _NEVER else step
            if step is not None:
                self._connected.publish(f"{self._name}/knows/{self._connected.rank}", True)


def connected(strategy: tf.distribute.Strategy) -> Any:
    """Returns the connection of the workers that train in step under a strategy; None if alone."""
    kinds = (tf.distribute.MultiWorkerMirroredStrategy, DataParallelStrategy)
    return runtime() if isinstance(strategy, kinds) else None
