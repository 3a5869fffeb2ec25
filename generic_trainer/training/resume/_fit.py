"""The Keras callback that saves checkpoints while `fit` runs, and resumes from them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.cluster import is_one_of_several
from generic_trainer._core.keras import is_keras_3
from generic_trainer._core.machine import available_cpus
from generic_trainer._core.signals import SigtermNotice
from generic_trainer.errors import ConfigurationError, TrainingError, WorkerLostError
from generic_trainer.training.distributed import (
    DataParallelStrategy,
    barrier,
    keep_metrics_in_worker_0,
)
from generic_trainer.training.resume._manager import CheckpointManager, SavedCheckpoint
from generic_trainer.training.resume._parts import UntrackedVariables, variables_of
from generic_trainer.training.resume._randomness import (
    shared_variables,
    stateful_draws,
    traced_functions,
)
from generic_trainer.training.resume._schedule import (
    Frequency,
    Schedule,
    Stop,
    make_schedule,
)
from generic_trainer.training.resume._state import (
    CallbacksState,
    ModelState,
    data_differ,
    move_to,
    read_weights,
    shuffles_within_a_pass,
    skip,
    take_position,
)
from generic_trainer.training.resume._taken import Writer, in_turn

_logger = logging.getLogger(__name__)


@dataclasses.dataclass
class _Position:
    """How far `fit` is; the metadata of its checkpoints.

    Attributes:
        epoch: the current epoch, as Keras counts it.
        lengths: the batches of each epoch that has ended.
        batches: batches of the current epoch that are done.
        steps: batches that are done in all epochs.
        consumed: batches taken from the iterator in use; more than `batches` if it serves several
            epochs.
        done: whether `fit` has ended.
        stopped: whether a callback has ended training after this batch.
    """

    epoch: int = 0
    lengths: list[int] = dataclasses.field(default_factory=list)
    batches: int = 0
    steps: int = 0
    consumed: int = 0
    done: bool = False
    stopped: bool = False


class _TrainFunction:
    """Calls the model's train function, or during a replay only pretends to.

    The first call of a replay is a real step: it makes every variable that training makes, all of
    which then get the values that were saved.

    Attributes:
        function: the model's own.
        iterator: gives the batches of the current epoch.
        consumed: the number of batches that were taken from it.
        replays: whether this is a replay.
        is_over: whether it replays a fit that had ended.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        is_past_the_end: Callable[[], bool],
        give_up: Callable[[], None],
    ) -> None:
        self.function, self._is_past_the_end, self._give_up = function, is_past_the_end, give_up
        self.iterator: Any = None
        self.consumed = 0
        self.replays = self.is_over = self._has_read = self._reads_all = False
        self._logs: Any = None

    def __call__(self, iterator: Any) -> Any:
        if iterator is not self.iterator:
            self.iterator, self.consumed = iterator, 0
            self._reads_all = self.replays and shuffles_within_a_pass(iterator, self.is_over)
        if self.replays and self._is_past_the_end():
            raise tf.errors.OutOfRangeError(None, None, "End of sequence")
        self._has_read = not self.replays or self._logs is None
        if self._has_read:
            try:
                self._logs = self.function(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):  # the end of the data
                raise
            except BaseException:
                if self.replays:  # Keras calls no callback, which would end the replay
                    self._give_up()
                raise
        return self._logs

    def count(self, batches: int) -> None:
        """Counts the batches of a step; a replay reads those with which shuffles draw seeds."""
        if not self._has_read:
            batches = batches if self._reads_all else int(not self.consumed)
            skip(self.iterator, batches)
        self.consumed += batches


class Resume(tf.keras.callbacks.Callback):
    """See `resume_callbacks`; must be the last of the callbacks.

    Checkpoints are taken at the end of a batch. A resumed `fit` replays its past: Keras goes
    through the same epochs and batches as before and makes the same iterators, while no step is
    computed, no data are evaluated, and no other callback is called. At the end of the batch at
    which the checkpoint was taken, everything is set to the saved state: variables, random
    generators, the other callbacks, the position in the data. From there on the run
    equals one without interruption.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._open_manager = open_manager
        self._others = list(others)
        self._frequency = frequency
        self._still_s = 0.0  # for the last checkpoint
        self._grace_s = grace_s
        self._clock = clock
        self._is_used = False
        self._resources = contextlib.ExitStack()
        self._replay: SavedCheckpoint | None = None
        self._muting = contextlib.ExitStack()
        self._position = _Position()
        self._epochs = self._batches = 0  # that have begun; done in the last of them
        self._first_batch = 0
        self._model_state: ModelState | None = None
        self._is_checked = True
        self._before: UntrackedVariables | None = None
        self._functions: set[str] = set()  # that were traced before the first step

    def __deepcopy__(self, memo: Any) -> Any:
        return _Copy()

    def __copy__(self) -> Any:
        return _Copy()

    def on_train_begin(self, logs: Any = None) -> None:
        if self._is_used:
            raise ConfigurationError(
                "These callbacks have served one fit already: call resume_callbacks for each fit, "
                "and pass another name, such as resume_callbacks(fn_args, name='fine_tuning')."
            )
        strategy = self.model.distribute_strategy
        _refuse_parameter_servers(strategy)
        with contextlib.ExitStack() as opened:
            self._manager = opened.enter_context(self._open_manager())
            self._is_used = True
            self._notice = opened.enter_context(SigtermNotice(self._grace_s))
            self._stop = opened.enter_context(contextlib.closing(Stop(self._notice, strategy)))
            self._train = _TrainFunction(
                self.model.train_function, self._is_past_the_end, self.close
            )
            if all(each is not self.model.history for each in self._others):
                self._others.append(self.model.history)  # which fit has made
            self._callbacks = CallbacksState(self._others)
            saved = self._manager.latest()
            if saved is not None:
                self._begin_replay(saved)
                opened.enter_context(self._muting)
            self._resources = opened.pop_all()
        self._schedule = self._make_schedule()
        self.model.train_function = self._train
        self._functions = traced_functions()
        self._before = UntrackedVariables(self._known())

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epochs, self._batches = self._epochs + 1, 0
        if self._replay is None:
            self._position.epoch, self._position.batches = epoch, 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._replay is None:
            self._position.lengths.append(self._position.batches)
            self._position.batches = 0
            self._is_checked = False  # a validation may have made variables
        elif self._position.lengths[self._epochs - 1 : self._epochs] != [self._batches]:
            raise data_differ()
        elif self._position.done and self._epochs == len(self._position.lengths):
            self._end_replay(self._replay)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._first_batch = batch  # of an execution of several steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        count = batch - self._first_batch + 1
        if self._before is not None:
            _log_draws(traced_functions() - self._functions)
            _log_untracked(self._before.changed(self._known()))
            self._before = None
        position = self._position
        self._train.count(count)
        self._batches = batch + 1
        if self._replay is not None:
            if self._epochs > len(position.lengths) and batch + 1 >= position.batches:
                self._end_replay(self._replay)
            elif position.stopped and self._epochs == len(position.lengths):
                self.model.stop_training = batch + 1 >= position.lengths[-1]
            return
        position.batches = batch + 1
        position.steps += count
        position.consumed = self._train.consumed
        position.stopped = self.model.stop_training
        if self._stop.is_due(position.steps):
            self._save(wait=True)
            self._wait_for_worker_0()
            self._end_early()
        # While the one before is being written, a checkpoint that no user has asked for stays due
        # and training goes on. Of several workers, which save after the same steps, none may put
        # it off.
        waits = (
            self._manager.is_writing
            and self._frequency.max_overhead is not None
            and not is_one_of_several()
        )
        if not waits and self._schedule.is_due(position.steps, self._cost_s()):
            self._save()

    def on_train_end(self, logs: Any = None) -> None:
        """Saves that there is nothing left to train: what follows may still be killed."""
        self.model.train_function = self._train.function
        if self._replay is not None:
            self.close()
            raise data_differ()
        if self._position.done:
            self.model.stop_training = self._position.stopped
        elif self._position.steps:
            self._position.done = True
            self._save(wait=True)
        if self._notice.received:
            self._end_early()
        self.close()

    def close(self) -> None:
        """Restores signal handlers and releases the lock on the checkpoints.

        A `fit` that ends calls this; one that raises calls no callback.
        """
        self._resources.close()

    def mutes(self, hook: str, *arguments: Any) -> bool:
        """Returns whether a hook is not called on the other callbacks."""
        begins = hook == "on_epoch_begin" and arguments[0] == self._position.epoch
        return self._replay is not None and not (begins and not self._position.done)

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    _implements_predict_batch_hooks = _implements_test_batch_hooks

    def _begin_replay(self, saved: SavedCheckpoint) -> None:
        with fitting(saved.path):
            self._position = position = _Position(**saved.metadata)
            read_weights(self.model, saved.path)  # layers compute constants from them
        if position.done:
            _logger.info("Training had ended before this run: its result is in %s", saved.path)
        else:
            _logger.info(
                "Resuming in epoch %d after %d of its batches (%d steps in all), from %s",
                position.epoch + 1,
                position.batches,
                position.steps,
                saved.path,
            )
        self._replay, self._train.replays, self._train.is_over = saved, True, position.done
        self._muting.enter_context(_muted(self))

    def _is_past_the_end(self) -> bool:
        """Returns whether the data of an epoch that is replayed end before the next batch."""
        lengths = self._position.lengths
        return self._epochs <= len(lengths) and self._first_batch >= lengths[self._epochs - 1]

    def _end_replay(self, saved: SavedCheckpoint) -> None:
        path, position = saved.path, self._position
        self._replay, self._train.replays = None, False
        self._muting.close()
        with fitting(path):
            self._state_of_model().read(path)
            keep_metrics_in_worker_0(self.model, are_sums=True)
            if not position.done:
                move_to(self._train.iterator, path, position.consumed - self._train.consumed)
            self._train.consumed = position.consumed
        try:
            self._callbacks.read(path, self.model)
        except ValueError as error:
            raise ConfigurationError(
                f"The checkpoint {path} does not fit resume_callbacks(callbacks=...): {error}. "
                "Pass the same callbacks in the same order, or delete it to start afresh."
            ) from error
        self.model.stop_training = position.stopped or position.done
        self._schedule = self._make_schedule()

    def _save(self, *, wait: bool = False) -> None:
        """Saves beside training; with `wait`, before the fit ends."""
        self._state_of_model()  # looked at once, which is no cost of the next
        start_s = self._clock()
        steps = self._position.steps
        keep_metrics_in_worker_0(self.model, are_sums=False)
        write, metadata = self._take(), dataclasses.asdict(self._position)
        for act in (
            self._manager.wait,  # for the one before, which may have failed
            lambda: self._manager.save_beside(steps, write, metadata),
            *([self._manager.wait] if wait else []),
        ):
            try:
                act()
            except TrainingError as error:
                _logger.warning("Training goes on without a new checkpoint: %s", error)
        self._still_s = self._clock() - start_s
        self._schedule.saved(steps)

    def _cost_s(self) -> float:
        """Returns the seconds of training that the last checkpoint cost.

        That are those in which training stood still, and the processor time of the thread that
        wrote beside training, by its share of the processors.
        """
        return self._still_s + self._manager.processor_s / len(available_cpus())

    def _take(self) -> Writer:
        """Returns a writer of the present state."""
        taken = [self._state_of_model().take(), self._callbacks.take(self.model)]
        position = self._position
        if not position.done:
            is_last = position.epoch + 1 >= self.params["epochs"]
            iterator, consumed = self._train.iterator, position.consumed
            taken.append(take_position(iterator, position.batches, consumed, is_last=is_last))
        return in_turn(*taken)

    def _wait_for_worker_0(self) -> None:
        """Returns when worker 0 has saved, which alone writes: the first to end has all stopped."""
        if isinstance(self.model.distribute_strategy, DataParallelStrategy):
            with contextlib.suppress(tf.errors.OpError):  # it has saved, and is gone already
                barrier("has saved before it stops")

    def _end_early(self) -> None:
        self.close()
        raise WorkerLostError(
            f"SIGTERM: training was preempted in epoch {self._position.epoch + 1} after "
            f"{self._position.steps} steps. The next run of the same inputs, code and "
            f"hyperparameters resumes from the checkpoints in {self._manager.directory}.",
            signal="SIGTERM",
        )

    def _state_of_model(self) -> ModelState:
        if self._model_state is None or not (self._is_checked or self._model_state.has_all()):
            self._model_state = ModelState(self.model, self._others)
        self._is_checked = True
        return self._model_state

    def _known(self) -> list[Any]:
        """Returns the variables that checkpoints have."""
        groups = variables_of(self.model, self._others).values()
        known = [each for group in groups for each in group.values()]
        strategy = self.model.distribute_strategy
        if isinstance(strategy, DataParallelStrategy):  # which counts its collectives
            known.append(strategy.connected.entered)
        return known + shared_variables(self.model)

    def _make_schedule(self) -> Schedule:
        strategy = self.model.distribute_strategy
        return make_schedule(self._frequency, self._position.steps, strategy, self._clock)


class _Copy(tf.keras.callbacks.Callback):
    """Takes the place of a copied `Resume`, which cannot know which of several fits it serves."""

    _supports_tf_logs = True

    def on_train_begin(self, logs: Any = None) -> None:
        _logger.warning(
            "This fit starts afresh and saves no checkpoints: it got a copy of resume_callbacks, "
            "as KerasTuner makes for each trial, and its checkpoints could be those of another "
            "trial. To resume it, call resume_callbacks with another name for each fit, in "
            "HyperModel.fit for example."
        )

    def _implements_train_batch_hooks(self) -> bool:
        return False

    _implements_test_batch_hooks = _implements_train_batch_hooks
    _implements_predict_batch_hooks = _implements_train_batch_hooks


@contextlib.contextmanager
def _muted(resume: Resume) -> Iterator[None]:
    """Keeps a fit that is replayed from calling other callbacks and from evaluating."""
    model = resume.model
    keras = sys.modules["keras" if is_keras_3(model) else "tf_keras"]

    def call(hook: str, original: Callable[..., Any], callbacks: Any, *args: Any, **kw: Any) -> Any:
        if resume in callbacks.callbacks and resume.mutes(hook, *args):
            try:
                return getattr(resume, hook)(*args, **kw)
            except BaseException:
                resume.close()
                raise
        return original(callbacks, *args, **kw)

    with contextlib.ExitStack() as replaced:
        kind = keras.callbacks.CallbackList
        for event in ("epoch", "train_batch"):
            for hook in (f"on_{event}_begin", f"on_{event}_end"):
                around = functools.partial(call, hook)
                replaced.enter_context(internals.replaced_method(kind, hook, around))
        model.evaluate = lambda *args, **kwargs: {}
        replaced.callback(delattr, model, "evaluate")
        yield


@contextlib.contextmanager
def fitting(path: str) -> Iterator[None]:
    """Replaces errors of a checkpoint that belongs to another model or other data."""
    try:
        yield
    except (AssertionError, KeyError, TypeError, ValueError, tf.errors.OpError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise TrainingError(
            f"The checkpoint {path} does not fit the model and the data of this run: {error}. "
            "Restore the code that wrote it, or delete the checkpoint to start afresh."
        ) from error


def _log_draws(functions: set[str]) -> None:
    places = stateful_draws(functions)
    if places:
        _logger.warning(
            "If this fit is resumed, it draws other random numbers than it would have in %s: there "
            "it draws with stateful ops of TensorFlow, whose state cannot be saved. For layers of "
            "Keras 2, call tf_keras.backend.experimental.enable_tf_random_generator() before you "
            "make them; elsewhere, draw with a tf.random.Generator.",
            ", ".join(places),
        )


def _log_untracked(names: list[str]) -> None:
    if names:
        _logger.warning(
            "If this fit is resumed, these variables start anew, because they are attributes "
            "neither of the model nor of a callback: %s. Assign them, or the object that has them, "
            "to an attribute of the model.",
            ", ".join(names),
        )


def _refuse_parameter_servers(strategy: tf.distribute.Strategy) -> None:
    if isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy):
        raise ConfigurationError(
            "resume_callbacks cannot follow the steps of a ParameterServerStrategy, which run on "
            "other machines in no fixed order. Use keras.callbacks.BackupAndRestore with "
            "fn_args.checkpoint_dir: it goes on from the start of an epoch."
        )
