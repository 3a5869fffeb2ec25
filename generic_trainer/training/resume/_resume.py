"""The Keras callback that saves while `fit` runs and goes on from what was saved."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer._core.signals import SigtermNotice
from generic_trainer.errors import ConfigurationError, TrainingError, WorkerLostError
from generic_trainer.training.resume._manager import CheckpointManager, SavedCheckpoint
from generic_trainer.training.resume._model_state import (
    ModelState,
    clear_first_epoch,
    set_first_epoch,
)
from generic_trainer.training.resume._plain_state import read_state, write_state
from generic_trainer.training.resume._reader_state import move_to, write_position
from generic_trainer.training.resume._schedule import (
    AgreedInterval,
    EveryInterval,
    EverySteps,
    Schedule,
)
from generic_trainer.training.resume._stop import AgreedStop, OwnStop, Stop, tasks_of
from generic_trainer.training.resume._train_function import TrainFunction

__all__ = ["Resume"]

_logger = logging.getLogger(__name__)


@dataclasses.dataclass
class _Place:
    """How far `fit` is.

    Attributes:
        epoch: the current epoch, from 0.
        batches: batches of this epoch that are done.
        steps: batches that are done since the start of `fit`, in all epochs.
        consumed: batches taken from the iterator in use; more than `batches` where one iterator
            serves many epochs.
        done: whether `fit` has come to its end.
    """

    epoch: int = 0
    batches: int = 0
    steps: int = 0
    consumed: int = 0
    done: bool = False


class Resume(tf.keras.callbacks.Callback):
    """See `resume_callbacks`; must be the last of the callbacks.

    Checkpoints are taken at the end of a batch. A resumed `fit` starts at the epoch of the newest
    one and runs through the batches that are done without training. At the end of the last of them,
    the point at which the checkpoint was taken, everything is set to what was saved: weights,
    optimizer, metrics, random generators, the other callbacks, the position in the data. From there
    on the run cannot tell that it was interrupted.
    """

    _supports_tf_logs = True  # Keras 2: the logs are not looked at, so there is nothing to convert
    _chief_worker_only = False  # Keras 2: every worker restores

    def __init__(
        self,
        open_manager: Callable[[], CheckpointManager],
        others: Sequence[Any],
        *,
        every_steps: int | None,
        every_s: float,
        grace_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._open_manager = open_manager
        self._others = others
        self._every_steps = every_steps
        self._every_s = every_s
        self._grace_s = grace_s
        self._clock = clock
        self._manager: CheckpointManager | None = None
        self._state: ModelState | None = None
        self._saved: SavedCheckpoint | None = None
        self._replayed: _Place | None = None
        self._place = _Place()
        self._first_batch = 0
        self._batches_read = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Looks for a checkpoint and makes `fit` start at its epoch."""
        if self._manager is not None:
            raise ConfigurationError(
                "These callbacks have served one fit already: call resume_callbacks for each, with "
                "a name of its own, such as resume_callbacks(fn_args, name='fine_tuning')."
            )
        _refuse_parameter_servers(self._strategy)
        self._manager = self._open_manager()
        self._notice = SigtermNotice(self._grace_s)
        self._stop = self._make_stop()
        self._train = TrainFunction(self.model.train_function)
        self._saved = self._manager.latest()
        if self._saved is not None:
            self._go_to(self._saved, _Place(**self._saved.metadata))
        self._schedule = self._make_schedule()
        self.model.train_function = self._train

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        clear_first_epoch(self.model)  # Keras has read it, and would read it in the next fit too
        self._place.epoch, self._place.batches = epoch, 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Notes where an execution of several steps begins."""
        self._first_batch = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts; saves when it is time; ends the replay."""
        count = batch - self._first_batch + 1
        if self._replayed is not None:
            # Only the first execution of a replay reads from the iterator.
            self._batches_read = self._batches_read or count
            if batch + 1 >= self._replayed.batches:
                self._end_replay(self._replayed)
            return
        self._train.consumed += count
        self._place.batches = batch + 1
        self._place.steps += count
        self._place.consumed = self._train.consumed
        if self._stop.is_due(self._place.steps):
            self._save()
            self._end_early()
        if self._schedule.is_due(self._place.steps):
            self._save()

    def on_train_end(self, logs: Any = None) -> None:
        """Saves that there is nothing left to train: what follows may still be killed."""
        clear_first_epoch(self.model)
        self.model.train_function = self._train.function
        if not self._place.done and self._place.steps:
            self._place.done = True
            self._save()
        if self._notice.received:
            self._end_early()
        self._close()

    def _go_to(self, saved: SavedCheckpoint, place: _Place) -> None:
        self._place = place
        ModelState.read_weights(self.model, saved.path)
        if place.done:
            _logger.info("Training had ended before this run: its result is in %s", saved.path)
            set_first_epoch(self.model, self.params["epochs"])
            self._read_others(saved)
            return
        _logger.info(
            "Resuming in epoch %d after %d of its batches (%d steps in all), from %s",
            place.epoch + 1,
            place.batches,
            place.steps,
            saved.path,
        )
        set_first_epoch(self.model, place.epoch)
        self._replayed = dataclasses.replace(place)
        self._train.replays = True

    def _end_replay(self, place: _Place) -> None:
        assert self._saved is not None
        path = self._saved.path
        self._replayed, self._train.replays = None, False
        self._place = place
        self._train.consumed = place.consumed
        try:
            self._model_state().read(path)
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise TrainingError(
                f"The checkpoint {path} does not fit the model that is trained now: {error}. "
                "Train the model that it was saved from, or delete it to start afresh."
            ) from error
        move_to(
            self._train.iterator,
            path,
            epoch=place.epoch,
            consumed=place.consumed,
            read=self._batches_read,
        )
        self._read_others(self._saved)
        self._schedule = self._make_schedule()

    def _read_others(self, saved: SavedCheckpoint) -> None:
        try:
            read_state(saved.path, self._others)
        except ValueError as error:
            raise ConfigurationError(
                f"The checkpoint {saved.path} does not fit resume_callbacks(callbacks=...): "
                f"{error}. Pass the same callbacks in the same order, or delete it to start afresh."
            ) from error

    def _save(self) -> None:
        start_s = self._clock()
        try:
            self._opened.save(self._place.steps, self._write, dataclasses.asdict(self._place))
        except TrainingError as error:
            _logger.warning("Training goes on without a new checkpoint: %s", error)
        self._schedule.saved(self._place.steps, self._clock() - start_s)

    def _write(self, directory: str) -> None:
        self._model_state().write(directory)
        write_state(directory, self._others)
        if not self._place.done:
            write_position(directory, self._train.iterator)

    def _end_early(self) -> None:
        self._close()
        raise WorkerLostError(
            f"SIGTERM: training was preempted in epoch {self._place.epoch + 1} after "
            f"{self._place.steps} steps. The next run of the same inputs, code and hyperparameters "
            f"resumes from the checkpoints in {self._opened.directory}."
        )

    def _close(self) -> None:
        self._stop.close()
        self._notice.close()
        self._opened.close()

    def _model_state(self) -> ModelState:
        if self._state is None:
            self._state = ModelState(self.model)
        return self._state

    def _make_stop(self) -> Stop:
        if tasks_of(self._strategy):
            return AgreedStop(self._notice, self._strategy)
        return OwnStop(self._notice)

    def _make_schedule(self) -> Schedule:
        steps = self._place.steps
        if self._every_steps is not None:
            return EverySteps(self._every_steps, steps)
        if tasks_of(self._strategy):
            return AgreedInterval(self._every_s, steps, self._mean, self._clock)
        return EveryInterval(self._every_s, self._clock)

    def _mean(self, value: float) -> float:
        """Returns the mean over all workers, who must call this at the same time."""
        values = self._strategy.experimental_distribute_values_from_function(
            lambda _: tf.constant(value, tf.float64)
        )
        return float(self._strategy.reduce(tf.distribute.ReduceOp.MEAN, values, axis=None))

    @property
    def _opened(self) -> CheckpointManager:
        assert self._manager is not None
        return self._manager

    @property
    def _strategy(self) -> Any:
        return self.model.distribute_strategy


def _refuse_parameter_servers(strategy: Any) -> None:
    if isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy):
        raise ConfigurationError(
            "resume_callbacks cannot follow the steps of a ParameterServerStrategy, which run on "
            "other machines in no fixed order. Use keras.callbacks.BackupAndRestore with "
            "fn_args.checkpoint_dir: it goes on from the start of an epoch."
        )
