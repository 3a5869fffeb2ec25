"""The steps after which a `fit` saves, and the one after which SIGTERM stops it.

Workers that train in step all save after the same steps and stop after the same one.
"""

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from generic_trainer._core.cluster import is_chief
from generic_trainer.training.distributed import DataParallelStrategy, runtime

# If the user sets neither steps nor seconds: the seconds between checkpoints, in between the share
# of the time since the start that a kill may cost; and the largest share of the time of training
# that they may take, for which they are further apart. A process that is preempted once a minute
# must save before: 10 s of it are for the imports.
_SHORTEST_S, _LONGEST_S = 10.0, 60.0
_MAX_LOSS = 0.25
_MAX_OVERHEAD = 0.01

_OVER = "over"

_numbers = itertools.count()


class Schedule:
    """The steps after which a fit saves: on all workers those that the clock of the chief sets.

    Source of `_MAX_OVERHEAD`: CheckFreq (Mohan et al., FAST '21), which tunes its frequency by the
    measured cost.
    """

    def __init__(
        self,
        every_steps: int | None,
        every_s: float | None,
        strategy: tf.distribute.Strategy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts counting.

        Args:
            every_steps: training steps from one checkpoint to the next; None counts seconds.
            every_s: seconds from one checkpoint to the next; None limits what they cost.
            strategy: of the model.
            clock: returns the time in seconds.
        """
        self._every_steps = every_steps
        self._every_s = every_s
        self._clock = clock
        # Without clocks, all workers count the same steps.
        self._strategy = strategy if every_steps is None else None
        self._next = CommonStep(None)
        self.begin(0)

    def begin(self, step: int) -> None:
        """Starts counting from a step, and the time from which steps may be lost."""
        self._began_s = self._clock()
        self.saved(step)

    def saved(self, step: int) -> None:
        """Starts counting anew; all workers call this after the same step."""
        self.close()
        self._last_step = step
        self._last_s = self._clock()
        self._next = CommonStep(self._strategy)

    def is_due(self, step: int, cost_s: float, *, is_writing: bool = False) -> bool:
        """Returns whether to save after a step.

        Args:
            step: the steps that are done.
            cost_s: seconds of training that the last checkpoint cost.
            is_writing: whether it is still being written. Unless the user has asked for the next
                one, that stays due, and training continues.
        """
        if self._every_steps is not None:
            return step - self._last_step >= self._every_steps
        now_s = self._clock()
        wait_s = self._every_s
        if wait_s is None:
            young_s = max(_SHORTEST_S, (now_s - self._began_s) * _MAX_LOSS)
            interval_s = max(min(young_s, _LONGEST_S), cost_s / _MAX_OVERHEAD)
            wait_s = math.inf if is_writing else interval_s
        is_late = now_s - self._last_s >= wait_s
        return self._next.is_due(step, is_wanted=is_late and is_chief())

    def close(self) -> None:
        """Ends counting."""
        self._next.close()


class CommonStep:
    """A step after which all workers do the same, as soon as any of them wants it.

    That worker publishes the next step, and begins it only when all workers know. No step ends
    without every worker, so none of them is past it by then.

    Source: how `tf.distribute.experimental.PreemptionCheckpointHandler` has workers agree.

    Attributes:
        is_common: whether there are other workers.
    """

    def __init__(self, strategy: tf.distribute.Strategy | None) -> None:
        """Begins to listen; all workers make theirs after the same step of the same `fit`.

        Args:
            strategy: of the model; this worker may be alone.
        """
        kinds = (tf.distribute.MultiWorkerMirroredStrategy, DataParallelStrategy)
        self._connected: Any = runtime() if isinstance(strategy, kinds) else None
        self.is_common = self._connected is not None
        self._step: int | None = None
        if self.is_common:
            self._name = f"step/{next(_numbers)}"
            threading.Thread(target=self._listen, name=self._name, daemon=True).start()

    def is_due(self, step: int, *, is_wanted: bool) -> bool:
        """Returns whether this step is that of all workers; without others, as soon as wanted."""
        if self._connected is None:
            return is_wanted
        if self._step is None and is_wanted:
            self._connected.publish(self._name, step + 1)
            for rank in range(self._connected.size):
                if self._connected.published(f"{self._name}/knows/{rank}") is None:
                    break  # after half a minute: it is dead, and the next step raises an error
        return self._step is not None and step >= self._step

    def close(self) -> None:
        """Ends listening."""
        # The other workers have come to the same step as well, or are gone already.
        if self._connected is not None:
            with contextlib.suppress(tf.errors.OpError):
                self._connected.publish(self._name, _OVER)

    def _listen(self) -> None:
        step = None
        # After an error the cluster is gone, and with it the training.
        with contextlib.suppress(tf.errors.OpError):
            while step is None:
                step = self._connected.published(self._name)
            self._step = None if step == _OVER else step
            self._connected.publish(f"{self._name}/knows/{self._connected.rank}", True)
