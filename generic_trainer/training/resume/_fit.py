"""The Keras callback that saves while `fit` runs and goes on from what was saved."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer._core.cluster import is_chief, is_one_of_several
from generic_trainer._core.goodput import GoodputMeter
from generic_trainer._core.keras import is_keras_3
from generic_trainer._core.signals import SigtermNotice
from generic_trainer.errors import ConfigurationError, TrainingError, WorkerLostError
from generic_trainer.training.distributed import (
    DataParallelStrategy,
    barrier,
    collect_metrics,
    keep_metrics_in_worker_0,
)
from generic_trainer.training.resume._manager import CheckpointManager, SavedCheckpoint
from generic_trainer.training.resume._randomness import stateful_draws, traced_functions
from generic_trainer.training.resume._schedule import (
    Frequency,
    Schedule,
    cost_s,
    make_schedule,
    make_stop,
)
from generic_trainer.training.resume._state import (
    ModelState,
    ReaderPosition,
    move_to,
    read_callbacks,
    read_randomness,
    set_first_epoch,
    take_callbacks,
    take_position,
)

_logger = logging.getLogger(__name__)


@dataclasses.dataclass
class _Position:
    """How far `fit` is; the metadata of its checkpoints.

    Attributes:
        epoch: the current epoch, from 0.
        batches: batches of this epoch that are done.
        steps: batches that are done since the start of `fit`, in all epochs.
        consumed: batches taken from the iterator in use; more than `batches` where one iterator
            serves many epochs.
        done: whether `fit` has come to its end.
        first_epoch: the `initial_epoch` of `fit`.
        length: batches of an epoch, once one has ended.
        useful_s: seconds of the run that went into these steps.
    """

    epoch: int = 0
    batches: int = 0
    steps: int = 0
    consumed: int = 0
    done: bool = False
    first_epoch: int = 0
    length: int = 0
    useful_s: float = 0.0

    def of_reader(self, epochs: int) -> ReaderPosition:
        is_last = self.epoch + 1 >= epochs
        return ReaderPosition(self.epoch - self.first_epoch, self.batches, self.consumed, is_last)


@dataclasses.dataclass
class _Replay:
    """The batches that a resumed `fit` runs through without training.

    Attributes:
        saved: the checkpoint that holds what they did.
        position: where it was taken, the end of the replay.
        batches_read: batches that were taken from the iterator all the same.
    """

    saved: SavedCheckpoint
    position: _Position
    batches_read: int = 0


class _TrainFunction:
    """Calls the model's train function, or only pretends to.

    While it replays, the first call is a real step: it makes every variable that training makes,
    which is then overwritten by what was saved. The others return at once.

    Attributes:
        function: the model's own.
        iterator: what the last step was given to read from.
        source: what it read from, where that is another one.
        consumed: how many batches the steps have taken from it.
        replays: whether the steps are those that the checkpoint holds already.
        limit: after how many batches the data end, where that is known; else None. Keras 2 tries
            one step more in the first epoch of a fit, and layers draw in it.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.iterator: Any = None
        self.source: Any = None
        self.consumed = 0
        self.replays = False
        self.limit: int | None = None
        self._logs: Any = None

    def __call__(self, iterator: Any) -> Any:
        if iterator is not self.iterator:
            self.iterator, self.source, self.consumed = iterator, iterator, 0
        if self.consumed == self.limit:
            raise tf.errors.OutOfRangeError(None, None, "End of sequence")
        if not self.replays:
            return self.function(self.source)
        if self._logs is None:
            self._logs = self.function(self.source)
        return self._logs


class Resume(tf.keras.callbacks.Callback):
    """See `resume_callbacks`; must be the last of the callbacks.

    Checkpoints are taken at the end of a batch. A resumed `fit` starts at the epoch of the newest
    one and runs through the batches that are done without training. At the end of the last of them,
    the point at which the checkpoint was taken, everything is set to what was saved: weights,
    optimizer, metrics, random generators, the other callbacks, the position in the data. From there
    on the run cannot tell that it was interrupted.
    """

    # Keras 2 asks its callbacks for these and for the `_implements_` methods; this one serves its
    # models also where `tf.keras`, whose class it is, is Keras 3.
    _supports_tf_logs = True  # the logs are not looked at, so there is nothing to convert
    _chief_worker_only = False  # every worker restores

    def __init__(
        self,
        open_manager: Callable[[], contextlib.AbstractContextManager[CheckpointManager]],
        others: Sequence[Any],
        *,
        frequency: Frequency,
        grace_s: float,
        name: str = "fit",
        run_dir: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._open_manager = open_manager
        self._others = list(others)
        self._frequency = frequency
        self._still_s = 0.0  # for the last checkpoint
        self._grace_s = grace_s
        self._name, self._run_dir = name, run_dir
        self._clock = clock
        self._is_used = False
        self._resources = contextlib.ExitStack()
        self._replay: _Replay | None = None
        self._finished: SavedCheckpoint | None = None
        self._position = _Position()
        self._first_batch = 0
        self._functions: set[str] | None = None  # that were traced before the first step

    def on_train_begin(self, logs: Any = None) -> None:
        if self._is_used:
            raise ConfigurationError(
                "These callbacks have served one fit already: call resume_callbacks for each, with "
                "a name of its own, such as resume_callbacks(fn_args, name='fine_tuning')."
            )
        strategy = self.model.distribute_strategy
        _refuse_parameter_servers(strategy)
        with contextlib.ExitStack() as opened:
            self._manager = opened.enter_context(self._open_manager())
            self._is_used = True
            self._notice = opened.enter_context(SigtermNotice(self._grace_s))
            self._stop = opened.enter_context(contextlib.closing(make_stop(self._notice, strategy)))
            self._meter = opened.enter_context(
                contextlib.closing(
                    GoodputMeter(self._manager.directory if is_chief() else None, self._run_dir)
                )
            )
            self._train = _TrainFunction(self.model.train_function)
            if all(each is not self.model.history for each in self._others):
                self._others.append(self.model.history)  # which fit has made
            saved = self._manager.latest()
            if saved is not None:
                self._go_to(saved)
            self._meter.begin(self._position.steps, self._position.useful_s)
            self._resources = opened.pop_all()
        self._schedule = self._make_schedule()
        self.model.train_function = self._train
        self._functions = traced_functions()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        set_first_epoch(self.model, None)  # Keras has read it, and would in the next fit too
        if not self._position.steps:
            self._position.first_epoch = epoch
        self._position.epoch, self._position.batches = epoch, 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._position.length = self._position.batches

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._first_batch = batch  # of an execution of several steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._functions is not None:
            _name_stateful_draws(traced_functions() - self._functions)
            self._functions = None
        count = batch - self._first_batch + 1
        if self._replay is not None:
            # Only the first execution of a replay reads from the iterator.
            self._replay.batches_read = self._replay.batches_read or count
            if batch + 1 >= self._replay.position.batches:
                self._end_replay(self._replay)
            return
        self._train.consumed += count
        self._position.batches = batch + 1
        self._position.steps += count
        self._position.consumed = self._train.consumed
        self._meter.step_ends(self._position.steps)
        if self._stop.is_due(self._position.steps):
            self._save(wait=True)
            self._wait_for_worker_0()
            self._end_early()
        # While the one before is being written, a checkpoint stays due and training goes on. Of
        # several workers, which save after the same steps, none may put it off.
        waits = (
            self._manager.is_writing
            and self._frequency.max_overhead is not None
            and not is_one_of_several()
        )
        if not waits and self._schedule.is_due(self._position.steps, self._cost_s()):
            self._save()

    def on_train_end(self, logs: Any = None) -> None:
        """Saves that there is nothing left to train: what follows may still be killed."""
        set_first_epoch(self.model, None)
        self.model.train_function = self._train.function
        if self._finished is not None:
            self._read_others(self._finished)  # fit's History has begun after this callback
            read_randomness(self._finished.path, self.model)
        elif self._position.steps:
            self._position.done = True
            self._save(wait=True)
            if is_chief():
                _logger.info("Goodput %s", self._meter.end(self._name))
        if self._notice.received:
            self._end_early()
        self.close()

    def close(self) -> None:
        """Ends what the fit has begun: to listen, and to keep others from its checkpoints.

        A `fit` that ends does so by itself; one that raises calls none of its callbacks.
        """
        self._resources.close()

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    _implements_predict_batch_hooks = _implements_test_batch_hooks

    def _go_to(self, saved: SavedCheckpoint) -> None:
        with fitting(saved.path):
            self._position = position = _Position(**saved.metadata)
            ModelState.read_weights(self.model, saved.path)
        if position.done:
            _logger.info("Training had ended before this run: its result is in %s", saved.path)
            set_first_epoch(self.model, self.params["epochs"])
            self._finished = saved
            self._read_others(saved)
            return
        _logger.info(
            "Resuming in epoch %d after %d of its batches (%d steps in all), from %s",
            position.epoch + 1,
            position.batches,
            position.steps,
            saved.path,
        )
        set_first_epoch(self.model, position.epoch)
        self._replay = _Replay(saved, dataclasses.replace(position))
        self._train.replays = True

    def _end_replay(self, replay: _Replay) -> None:
        path = replay.saved.path
        self._replay, self._train.replays = None, False
        self._position = replay.position
        self._train.consumed = replay.position.consumed
        if not is_keras_3(self.model) and replay.position.consumed == replay.position.batches:
            self._train.limit = replay.position.length or None
        with fitting(path):
            self._model_state.read(path)
            keep_metrics_in_worker_0(self.model)
            self._train.source = move_to(
                self._train.source,
                path,
                replay.position.of_reader(self.params["epochs"]),
                model=self.model,
                read=replay.batches_read,
            )
            read_randomness(path, self.model)
        self._read_others(replay.saved)
        self._schedule = self._make_schedule()

    def _read_others(self, saved: SavedCheckpoint) -> None:
        try:
            read_callbacks(saved.path, self._others)
        except ValueError as error:
            raise ConfigurationError(
                f"The checkpoint {saved.path} does not fit resume_callbacks(callbacks=...): "
                f"{error}. Pass the same callbacks in the same order, or delete it to start afresh."
            ) from error

    def _save(self, *, wait: bool = False) -> None:
        """Saves beside training; with `wait`, where no step follows."""
        is_taken = self._model_state.can_be_taken  # looked at once, which is no cost of the next
        start_s = self._clock()
        steps = self._position.steps
        self._position.useful_s = self._meter.useful_s
        collect_metrics(self.model)
        write, metadata = self._take(), dataclasses.asdict(self._position)
        for act in (
            self._manager.wait,  # for the one before, which may have failed
            lambda: self._manager.save(steps, write, metadata, wait=wait, is_taken=is_taken),
        ):
            try:
                act()
            except TrainingError as error:
                _logger.warning("Training goes on without a new checkpoint: %s", error)
        self._still_s = self._clock() - start_s
        self._schedule.saved(steps)
        self._meter.saved()

    def _cost_s(self) -> float:
        """Returns what the last checkpoint has cost training."""
        return cost_s(self._still_s, self._manager.processor_s)

    def _take(self) -> Callable[[str], None]:
        """Returns what writes the state of this moment into a directory."""
        taken = [self._model_state.take(), take_callbacks(self._others, self.model)]
        if not self._position.done:
            position = self._position.of_reader(self.params["epochs"])
            taken.append(take_position(self._train.source, position))

        def write(directory: str) -> None:
            for write_part in taken:
                write_part(directory)

        return write

    def _wait_for_worker_0(self) -> None:
        """Returns when worker 0 has saved, which alone writes: the first to end has all stopped."""
        if isinstance(self.model.distribute_strategy, DataParallelStrategy):
            with contextlib.suppress(tf.errors.OpError):  # it has saved, and is gone already
                barrier("told to stop, and has saved")

    def _end_early(self) -> None:
        self.close()
        raise WorkerLostError(
            f"SIGTERM: training was preempted in epoch {self._position.epoch + 1} after "
            f"{self._position.steps} steps. The next run of the same inputs, code and "
            f"hyperparameters resumes from the checkpoints in {self._manager.directory}.",
            signal="SIGTERM",
        )

    @functools.cached_property
    def _model_state(self) -> ModelState:
        return ModelState(self.model)

    def _make_schedule(self) -> Schedule:
        strategy = self.model.distribute_strategy
        return make_schedule(self._frequency, self._position.steps, strategy, self._clock)


@contextlib.contextmanager
def fitting(path: str) -> Iterator[None]:
    """Tells what is raised where a good checkpoint is restored into something else."""
    try:
        yield
    except (AssertionError, KeyError, TypeError, ValueError, tf.errors.OpError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise TrainingError(
            f"The checkpoint {path} does not fit the model and the data that are trained now: "
            f"{error}. Train what it was saved from, or delete it to start afresh."
        ) from error


def _name_stateful_draws(functions: set[str]) -> None:
    places = stateful_draws(functions)
    if places:
        _logger.warning(
            "If this fit is resumed, it draws other random numbers than it would have in %s: there "
            "it draws with stateful ops of TensorFlow, whose state cannot be saved. For layers of "
            "Keras 2, call tf_keras.backend.experimental.enable_tf_random_generator() before you "
            "make them; elsewhere, draw with a tf.random.Generator.",
            ", ".join(places),
        )


def _refuse_parameter_servers(strategy: tf.distribute.Strategy) -> None:
    if isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy):
        raise ConfigurationError(
            "resume_callbacks cannot follow the steps of a ParameterServerStrategy, which run on "
            "other machines in no fixed order. Use keras.callbacks.BackupAndRestore with "
            "fn_args.checkpoint_dir: it goes on from the start of an epoch."
        )
