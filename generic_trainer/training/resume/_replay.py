"""The part of a resumed fit that is not computed again.

A fit of 3 epochs of 4 batches is killed in its 7th step. Its last checkpoint is that
of step 5, after the first batch of epoch 2. What the next fit does::

    step  1        2  3  4   |  5              6  7  8  |  9 ...
          computed replayed  |  replayed       computed as without the kill
                             |  then everything is restored

- Step 1 is computed because only a step makes all variables: those of optimizers, of
  metrics, of layers that are built late. What it has changed is overwritten in the end.
  A step after a callback has compiled the model anew, in `on_epoch_begin` of the epoch that goes
  on, is computed for the same reason.
- Steps 2 to 5 are calls of the train function that return saved logs. Keras itself goes
  through epochs and batches, so that iterators, counters and loops become those of a fit
  that has trained. `initial_epoch` could only begin at an epoch, and a shortened dataset
  would draw other seeds.
- At the end of step 5 the data move to batch 2 of epoch 2, then all state is set.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from generic_trainer._core.keras import is_keras_3
from generic_trainer._core.records import streaming
from generic_trainer._core.scratch import unlike_a_pattern
from generic_trainer.training.distributed import size
from generic_trainer.training.resume._callback_state import logs_like
from generic_trainer.training.resume._draws import Draws
from generic_trainer.training.resume._manager import SavedCheckpoint, fitting
from generic_trainer.training.resume._position import Position
from generic_trainer.training.resume._reader import (
    caches_a_shuffle,
    data_differ,
    move_to,
    shuffles_within_a_pass,
    skip,
)
from generic_trainer.training.resume._state import ModelState

_logger = logging.getLogger(__name__)


class Replay:
    """The way from the start of a fit to a checkpoint.

    Attributes:
        goal: the position of the checkpoint, at which it ends.
        logs: what the last step before the checkpoint has returned, which may end an epoch; None
            until a step is computed.
        path: of the checkpoint.
        muting: what keeps `fit` from evaluating, and other callbacks from being called; closed at
            the end.
    """

    def __init__(
        self,
        saved: SavedCheckpoint,
        model: Any,
        params: Mapping[str, Any],
        state: ModelState,
        draws: Draws,
    ) -> None:
        """Restores the weights, because layers compute constants from them.

        Args:
            saved: the checkpoint.
            model: the model.
            params: of this fit, as Keras gives them to callbacks: its epochs, and its steps.
            state: of the model; keeps the values of the checkpoint.
            draws: of the data, which begin as they did.

        Raises:
            TrainingError: the checkpoint does not fit the model or the epochs.
        """
        self.path = saved.path
        self.muting = contextlib.ExitStack()
        self._model = model
        self._state = state
        self._draws = draws
        self.logs: Any = None
        self._reads_all = False  # of the current iterator
        # Batches that the data may lack in an execution of several steps: Keras 3 counts whole
        # ones, also if the data end within the last one.
        self._lacking = model.steps_per_execution - 1 if is_keras_3(model) else 0
        with fitting(self.path):
            self.goal = Position(**saved.metadata)
            state.read_weights(self.path)
            draws.restore(state.saved["draws"])
        known = (self.goal.epochs, params["epochs"]), (self.goal.of_epoch, params.get("steps"))
        if any(None not in (then, now) and then != now for then, now in known):
            raise data_differ()
        lengths, batches = self.goal.lengths, self.goal.batches
        where = f"in epoch {len(lengths) + 1} after {batches} of its batches"
        where = "at the end of the training" if self.goal.done else where
        _logger.info("Resuming %s (%d steps in all), from %s", where, self.goal.steps, self.path)

    def mute_evaluation(self, is_muted: bool) -> None:
        """Keeps `fit` from evaluating after the steps of an epoch; callbacks may before them."""
        if is_muted == ("evaluate" in vars(self._model)):
            return
        if is_muted:
            self._model.evaluate = lambda *args, **kwargs: {}
        else:
            del self._model.evaluate

    def begin_pass(self, iterator: Any) -> None:
        """Learns whether all batches of an iterator have to be read."""
        within = shuffles_within_a_pass(iterator, self.goal.done)
        self._reads_all = within or self._draws.reads_all

    def step_ends(self, computed: Any) -> None:
        """Takes what a computed step has returned, whose structure the logs get."""
        with fitting(self.path):
            self.logs = logs_like(computed, self._state.saved["logs"])

    def ends_epoch(self, position: Position) -> bool:
        """Returns whether the current epoch has no more steps than those that are done."""
        lengths = self.goal.lengths[len(position.lengths) :]
        return bool(lengths) and position.batches >= lengths[0]

    def skip(self, iterator: Any, count: int, *, is_first: bool) -> int:
        """Reads batches with which shuffles draw, and no others; returns their number.

        Args:
            iterator: of the current pass over the data.
            count: of the steps that have just been replayed.
            is_first: whether nothing was read from the iterator yet.
        """
        read = count if self._reads_all else int(is_first and not self._draws.of_python)
        skip(iterator, read, self._lacking)
        return read

    def is_over(self, position: Position) -> bool:
        """Returns whether the position is that of the checkpoint."""
        epochs_left = len(self.goal.lengths) - len(position.lengths)
        return not epochs_left and position.batches >= self.goal.batches

    def may_stop(self, position: Position) -> bool:
        """Returns whether a callback ended the training in this epoch."""
        is_last = len(self.goal.lengths) - len(position.lengths) == 1
        return is_last and self.goal.done and self.goal.stopped

    def check_epoch(self, position: Position) -> None:
        """Raises an error if the epochs that have ended were of other lengths."""
        if position.lengths != self.goal.lengths[: len(position.lengths)]:
            raise data_differ()

    def end(self, iterator: Any, consumed: int) -> None:
        """Moves the data to the place of the checkpoint.

        Args:
            iterator: of the current pass over the data.
            consumed: batches that were taken from it.
        """
        goal = self.goal
        self.muting.close()
        self._draws.is_replay = False
        if goal.streams != streaming.is_set() and not goal.done:
            ways = "come from columns", "are streamed"
            _logger.warning(
                "The examples %s now, in another order than those of the checkpoint, which %s: in "
                "this epoch some rows come twice and others never. Free memory and disk decide "
                "which. Make room, or set GENERIC_TRAINER_READER_PATH to memory, disk or stream.",
                ways[streaming.is_set()],
                ways[goal.streams],
            )
        if goal.lengths and not goal.done and caches_a_shuffle(iterator):
            _logger.warning(
                "The data are shuffled or drawn before a cache, which is filled anew in another "
                "order: in this epoch some rows come twice and others never. Shuffle after it."
            )
        with fitting(self.path):
            if not goal.done:
                self._draws.end_replay(self._state.saved["random"], len(goal.lengths))
                fits = goal.shared == (size() > 1)
                with unlike_a_pattern(self.path) as path:
                    batches = goal.consumed - consumed
                    move_to(iterator, path, batches, self._lacking, has_state=fits)


def end_of_data() -> tf.errors.OutOfRangeError:
    """Returns the error by which data of unknown length end, and Keras ends an epoch."""
    return tf.errors.OutOfRangeError(None, None, "End of sequence")
