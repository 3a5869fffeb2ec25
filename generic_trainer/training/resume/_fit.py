"""The Keras callback that saves checkpoints while `fit` runs, and resumes from them.

A fit of 3 epochs of 4 batches is killed in its 7th step. Its last checkpoint is that
of step 5, after the first batch of epoch 2. What the next fit does::

    step  1        2  3  4   |  5              6  7  8  |  9 ...
          computed replayed  |  replayed       computed as without the kill
                             |  then `_end_replay` restores everything

- Step 1 is computed because only a step makes all variables: those of optimizers, of
  metrics, of layers that are built late. What it has changed is overwritten in the end.
- Steps 2 to 5 are calls of `_train` that return saved logs. Keras itself goes through
  epochs and batches, so that iterators, counters and loops become those of a fit that
  has trained. `initial_epoch` could only begin at an epoch, and a shortened dataset
  would draw other seeds.
- At the end of step 5 the data move to batch 2 of epoch 2, then all state is set.

`_goal` is the state of this machine: the position of the checkpoint during a replay,
None before and after it. `_position` is the position of this fit, in either state.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.cluster import is_chief
from generic_trainer._core.keras import is_class_of_keras, is_keras_3
from generic_trainer._core.machine import available_cpus
from generic_trainer._core.progress import note
from generic_trainer._core.records import streaming
from generic_trainer._core.signals import SigtermNotice
from generic_trainer.errors import ConfigurationError, WorkerLostError
from generic_trainer.training._watch import RESUMED, is_progress
from generic_trainer.training.distributed import (
    DataParallelStrategy,
    barrier,
    keep_metrics_in_worker_0,
)
from generic_trainer.training.resume._callback_state import (
    CallbackState,
    is_optional,
    logs_like,
    numbers_of,
)
from generic_trainer.training.resume._clocks import now
from generic_trainer.training.resume._draws import Draws
from generic_trainer.training.resume._manager import CheckpointManager, SavedCheckpoint, fitting
from generic_trainer.training.resume._not_finite import NanWatch
from generic_trainer.training.resume._position import Position, note_end
from generic_trainer.training.resume._randomness import Unsaved, shared_variables
from generic_trainer.training.resume._reader import (
    data_differ,
    move_to,
    shuffles_within_a_pass,
    skip,
    take_position,
)
from generic_trainer.training.resume._schedule import CommonStep, Schedule
from generic_trainer.training.resume._state import (
    TRAINABLE,
    ModelState,
    attributes_of,
    set_attributes,
)

_logger = logging.getLogger(__name__)

# Directory of checkpoints → the callback of a fit in this process that has begun and not ended.
_begun: dict[str, Resume] = {}


class _OfEitherKeras(tf.keras.callbacks.Callback):
    """Serves models of Keras 2 also where `tf.keras`, whose class it is, is Keras 3.

    Keras 2 asks its callbacks for these attributes and methods.
    """

    _supports_tf_logs = True  # the logs are not looked at, so there is nothing to convert

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    _implements_predict_batch_hooks = _implements_test_batch_hooks


class Resume(_OfEitherKeras):
    """See `resume_callbacks`; becomes the last of the callbacks.

    Checkpoints are taken at the end of a batch. A resumed `fit` replays its past: Keras goes
    through the same epochs and batches as before and makes the same iterators, while no step is
    computed, no data are evaluated, and no other callback is called. At the end of the batch at
    which the checkpoint was taken, everything is set to the saved state: variables, random
    generators, the other callbacks, the position in the data. From there on the run
    equals one without interruption.
    """

    def __init__(
        self,
        directory: str,
        schedule_for: Callable[..., Schedule],
        grace_s: float,
        run_dir: str,
        on_nan: str,
        **manager: Any,
    ) -> None:
        """See `resume_callbacks`; the further arguments are those of `CheckpointManager`."""
        super().__init__()
        self._open_manager = functools.partial(CheckpointManager, directory, **manager)
        self._directory = directory
        self._schedule_for = schedule_for
        self._grace_s = grace_s
        self._run_dir = run_dir
        self._nan_watch = NanWatch(on_nan)
        self._others: list[Any] = []  # of the same fit, once it has begun an epoch
        self._still_s = 0.0  # for the last checkpoint
        self._resources = contextlib.ExitStack()
        self._muting = contextlib.ExitStack()
        self._position = Position()
        self._goal: Position | None = None  # at which a replay ends
        self._iterator: Any = None  # of the current epoch
        self._function: Any = None  # of a step
        self._is_made_anew = False  # by a callback, since the fit began
        self._epoch = 0  # as Keras counts
        self._finds_variables = False
        self._unsaved: Unsaved | None = None  # until the first step of this process

    def __reduce__(self) -> Any:
        return _Copy, ()

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self._since = now()  # which no callback has read a clock before in this fit

    def on_train_begin(self, logs: Any = None) -> None:
        if hasattr(self, "_manager"):
            raise ConfigurationError(
                "These callbacks have served one fit already: call resume_callbacks for each fit, "
                "and pass another name, such as resume_callbacks(fn_args, name='fine_tuning')."
            )
        strategy = self.model.distribute_strategy
        if isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy):
            raise ConfigurationError(
                "resume_callbacks cannot follow the steps of a ParameterServerStrategy, which run "
                "on other machines in no fixed order. Use keras.callbacks.BackupAndRestore with "
                "fn_args.checkpoint_dir: it goes on from the start of an epoch."
            )
        # An attempt of this process that raised still has the lock on the directory,
        # because Keras calls no callback after an error: this one would be refused.
        if self._directory in _begun:
            _begun[self._directory].close()
        with contextlib.ExitStack() as opened:
            self._manager = opened.enter_context(self._open_manager(writes=is_chief()))
            _begun[self._directory] = self
            opened.callback(_begun.pop, self._directory)  # and with it the model
            self._notice = opened.enter_context(SigtermNotice(self._grace_s))
            # A thread, because training would wait for an object store; one for all notes, because
            # to start one waits until it runs, up to 5 ms if others hold the interpreter.
            self._notes = opened.enter_context(concurrent.futures.ThreadPoolExecutor(1, "notes"))
            self._stop = opened.enter_context(contextlib.closing(CommonStep(strategy)))
            self._schedule = opened.enter_context(contextlib.closing(self._schedule_for(strategy)))
            # Keras 3 counts whole executions, also if the data end within the last one.
            self._lacking = self.model.steps_per_execution - 1 if is_keras_3(self.model) else 0
            self._state = ModelState(self.model, self._others)
            self._draws = Draws(self.model)
            self._nan_watch.begin(self.model, self._state, self._directory)
            opened.enter_context(self._replaced("on_epoch_begin", self._begin_epoch))
            saved = self._manager.latest()
            if saved is not None:
                self._begin_replay(saved)
                opened.enter_context(self._muting)
            self._resources = opened.pop_all()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._take_steps()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        position, goal = self._position, self._goal
        # Keras 2 calls `on_epoch_end` of a Sequence after this, Keras 3 before it: there
        # the last batch of an epoch is the only moment before the Sequence draws.
        if not is_keras_3(self.model):
            self._draws.end_pass(len(position.lengths), is_replayed=goal is not None)
        position.lengths.append(position.batches)
        position.batches = 0
        self._finds_variables = True  # a validation may have made some
        if goal is not None:
            if position.lengths != goal.lengths[: len(position.lengths)]:
                raise data_differ()
            if goal.done and position.lengths == goal.lengths:
                self._end_replay(goal)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        position, goal = self._position, self._goal
        count = batch + 1 - position.batches  # more than one in an execution of several steps
        if self._unsaved is not None:
            self._state.find_variables()
            self._unsaved.log(self._saved_variables())
            self._unsaved = None
        elif goal is not None:  # of what is replayed, only the batches with which shuffles draw
            reads_one = not (position.consumed or self._draws.of_python)
            count = count if self._reads_all else int(reads_one)
            skip(self._iterator, count, self._lacking)
        position.consumed += count
        position.batches = batch + 1
        epochs_left = 0 if goal is None else len(goal.lengths) - len(position.lengths)
        is_end = position.batches >= (self.params.get("steps") or math.inf)
        if is_end and is_keras_3(self.model) and (goal is None or epochs_left):
            self._draws.end_pass(len(position.lengths), is_replayed=goal is not None)
        if goal is not None:
            if not epochs_left and position.batches >= goal.batches:
                self._end_replay(goal)
            elif epochs_left == 1 and goal.done and goal.stopped:
                # A callback ended the fit within this epoch: Keras must leave it there.
                self.model.stop_training = position.batches >= goal.lengths[-1]
            return
        position.stopped = self.model.stop_training
        if not position.stopped:  # else a callback has acted
            self._nan_watch.look(self._logs, position)
        if self._stop.is_due(position.steps, is_wanted=self._notice.received):
            self._save(wait=True)
            if self._stop.is_common:
                # Worker 0 alone writes, and the first to end has all stopped.
                with contextlib.suppress(tf.errors.OpError):  # it has saved, and is gone already
                    barrier("has saved before it stops")
            self._end_early()
        # Training stood still, and the thread that wrote beside it had its share of the processors.
        cost_s = self._still_s + self._manager.processor_s / len(available_cpus())
        if self._schedule.is_due(position.steps, cost_s, is_writing=self._manager.is_writing):
            self._save()

    def on_train_end(self, logs: Any = None) -> None:
        """Saves that there is nothing left to train: what follows may still be killed."""
        with contextlib.closing(self):
            if self._goal is not None:
                raise data_differ()
            if self._position.done:
                self._restore()  # other callbacks may have changed the weights once more
                self.model.stop_training = self._position.stopped
            elif self._position.steps:
                self._position.epochs = self.params["epochs"]
                self._position.done = True
                self._save(wait=True)
            if self._position.done:
                note_end(self._directory, self._run_dir)
            if self._notice.received:
                self._end_early()

    def close(self) -> None:
        """Restores signal handlers and releases the lock on the checkpoints.

        A `fit` that ends calls this; one that raises calls no callback.
        """
        self._resources.close()

    def _begin_replay(self, saved: SavedCheckpoint) -> None:
        self._path = saved.path
        with fitting(saved.path):
            self._goal = goal = Position(**saved.metadata)
            self._state.read_weights(saved.path)  # layers compute constants from them
            self._draws.restore(self._state.saved.get("draws"))
        if goal.epochs not in (None, self.params["epochs"]):
            raise data_differ()
        self.params[RESUMED] = sum(goal.lengths)
        where = f"in epoch {len(goal.lengths) + 1} after {goal.batches} of its batches"
        where = "at the end of the training" if goal.done else where
        _logger.info("Resuming %s (%d steps in all), from %s", where, goal.steps, saved.path)

    def _begin_steps(self) -> None:
        """Takes over the steps, once no callback can raise or evaluate in `on_train_begin`."""
        self._attributes = attributes_of(self.model)
        self._take_steps()
        self._resources.callback(self._give_back)
        self._unsaved = Unsaved()
        if self._goal is not None:  # other callbacks are not called
            for hook in ("on_epoch_end", "on_train_batch_begin", "on_train_batch_end"):
                call = functools.partial(self._call, hook)
                self._muting.enter_context(self._replaced(hook, call))
            self._muting.callback(self._mute_evaluation, False)

    def _take_steps(self) -> None:
        """Takes over the steps, also those of a function that a callback has made anew."""
        function = self.model.train_function
        if function not in (None, self._train):
            self._is_made_anew = self._function is not None
            self._function = function
            self.model.train_function = self._train
            self._finds_variables = True  # it may have another optimizer

    def _give_back(self) -> None:
        if self.model.train_function == self._train:  # and has not been compiled once more
            self.model.train_function = self._function

    def _mute_evaluation(self, is_muted: bool) -> None:
        """Keeps `fit` from evaluating after the steps of an epoch; callbacks may before them."""
        if is_muted == ("evaluate" in vars(self.model)):
            return
        if is_muted:
            self.model.evaluate = lambda *args, **kwargs: {}
        else:
            del self.model.evaluate

    def _replaced(self, hook: str, around: Callable[..., Any]) -> Any:
        keras: Any = sys.modules["keras" if is_keras_3(self.model) else "tf_keras"]
        return internals.replaced_method(keras.callbacks.CallbackList, hook, around)

    def _begin_epoch(self, original: Any, callbacks: Any, epoch: int, *args: Any) -> Any:
        """Takes in the other callbacks, which now come before this one; then as `_call`."""
        members: list[Any] = callbacks.callbacks
        if self in members and not hasattr(self, "_callback_state"):
            # Last: a checkpoint must have what other callbacks made of the same batch.
            members.sort(key=lambda member: member is self)
            self._nan_watch.waits = any(
                getattr(member, "restore_best_weights", False) for member in members
            )
            bars = [
                member for member in members if is_class_of_keras(type(member), "ProgbarLogger")
            ]
            others = [
                member for member in members[:-1] if member not in bars and not is_progress(member)
            ]
            self._others += [member for member in others if not is_optional(member)]
            with self._closed_by_errors():
                self._callback_state = CallbackState(others, self._since, self._run_dir)
                if self._goal is not None and self._goal.first != epoch:
                    raise data_differ()
                self._begin_steps()
            self._position.first = epoch
        return self._call("on_epoch_begin", original, callbacks, epoch, *args)

    def _call(
        self, hook: str, original: Callable[..., Any], callbacks: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Calls a hook of this callback alone, or of all for the epoch in which `fit` resumes."""
        if self not in callbacks.callbacks:  # another fit: the hook is that of a class
            return original(callbacks, *args, **kwargs)
        is_next = self._goal is None or self._position.lengths == self._goal.lengths
        with self._closed_by_errors():
            if hook != "on_epoch_begin" or not is_next:
                return getattr(self, hook)(*args, **kwargs)
            self._mute_evaluation(False)
            with self._callback_state.hook():
                return original(callbacks, *args, **kwargs)

    @contextlib.contextmanager
    def _closed_by_errors(self) -> Iterator[None]:
        """Ends the replay after an error, after which Keras calls no callback."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _train(self, iterator: Any) -> Any:
        """Calls the model's train function, or during a replay only pretends to.

        The first call of a replay is a real step: it makes every variable that training makes, all
        of which then get the values that were saved. What all calls of a replay return was saved,
        too: the last one may end an epoch.
        """
        position, goal = self._position, self._goal
        if iterator is not self._iterator:
            self._iterator = iterator
            position.consumed = 0
            self._draws.begin_pass(iterator, is_replayed=goal is not None)
            within = goal is not None and shuffles_within_a_pass(iterator, goal.done)
            self._reads_all = within or self._draws.reads_all
        if goal is None:
            self._logs = self._nan_watch.step(self._function, iterator, position)
            return self._logs
        self._mute_evaluation(True)
        lengths = goal.lengths[len(position.lengths) :]
        if lengths and position.batches >= lengths[0]:
            # Data of unknown length: their end is all by which Keras ends the epoch.
            raise tf.errors.OutOfRangeError(None, None, "End of sequence")
        if self._unsaved is not None:
            with self._closed_by_errors():
                logs = self._function(iterator)
                with fitting(self._path):
                    self._logs = logs_like(logs, self._state.saved["logs"])
        return self._logs

    def _end_replay(self, goal: Position) -> None:
        consumed = self._position.consumed
        self._position, self._goal = goal, None
        self._muting.close()
        if goal.streams != streaming.is_set() and not goal.done:
            ways = "come from columns", "are streamed"
            _logger.warning(
                "The examples %s now, in another order than those of the checkpoint, which %s: in "
                "this epoch some rows come twice and others never. Free memory and disk decide "
                "which. Make room, or set GENERIC_TRAINER_READER_PATH to memory, disk or stream.",
                ways[streaming.is_set()],
                ways[goal.streams],
            )
        with fitting(self._path):
            if not goal.done:
                self._draws.end_replay(self._state.saved["random"], len(goal.lengths))
                move_to(self._iterator, self._path, goal.consumed - consumed, self._lacking)
        self._restore()  # last, because reading batches again draws from the generators
        self.model.stop_training = goal.stopped or goal.done
        self._schedule.saved(goal.steps)

    def _restore(self) -> None:
        with fitting(self._path):
            self._state.read()
            set_attributes(self.model, self._state.saved.get("attributes", {}))
            if self._state.saved.get("is_made_anew"):  # with these attributes
                self.model.make_train_function(force=True)
                self._take_steps()
            self._callback_state.assign(self._state.saved["callbacks"], self._path, is_chief())
            keep_metrics_in_worker_0(self.model, are_sums=True)

    def _save(self, *, wait: bool = False) -> None:
        """Saves beside training; with `wait`, before the fit ends."""
        if self._finds_variables:  # which is no cost of the next
            self._state.find_variables()
            self._finds_variables = False
        start_s = time.monotonic()
        position = self._position
        position.streams = streaming.is_set()
        is_stopped = self.model.stop_training  # by TerminateOnNaN, for example
        if not is_stopped and not self._nan_watch.look(self._logs, position, at_weights=True):
            return
        # A collective: a worker that saved after another step would wait for ever.
        keep_metrics_in_worker_0(self.model, are_sums=False)
        tensors = {}
        if not position.done:
            is_last = self._epoch + 1 >= self.params["epochs"]
            tensors = take_position(
                self._iterator, position.batches, position.consumed, is_last=is_last
            )
        write = self._state.take(
            tensors,
            callbacks=self._callback_state.values(),
            logs=numbers_of(self._logs),
            draws=self._draws.values(),
            attributes=self._changed_attributes(),
            is_made_anew=self._is_made_anew,
        )
        self._manager.settle()  # the one before, which may have failed
        self._manager.save_beside(position.steps, write, dataclasses.asdict(position))
        if wait:
            self._manager.settle()
        self._still_s = time.monotonic() - start_s
        self._notes.submit(note, checkpoint_s=round(self._still_s, 4))
        self._schedule.saved(position.steps)

    def _changed_attributes(self) -> dict[str, Any]:
        return {
            path: value
            for path, value in attributes_of(self.model).items()
            if path.endswith(f".{TRAINABLE}") or value != self._attributes.get(path)
        }

    def _end_early(self) -> None:
        self.close()
        raise WorkerLostError(
            f"SIGTERM: training was preempted in epoch {self._epoch + 1} after "
            f"{self._position.steps} steps. The next run of the same inputs, code and "
            f"hyperparameters resumes from the checkpoints in {self._manager.directory}.",
            signal="SIGTERM",
        )

    def _saved_variables(self) -> list[Any]:
        saved = [*self._state.variables.values(), *shared_variables(self.model)]
        strategy = self.model.distribute_strategy
        if isinstance(strategy, DataParallelStrategy):  # which counts its collectives
            saved.append(strategy.connected.entered)
        return saved


class _Copy(_OfEitherKeras):
    """Takes the place of a copied `Resume`, which cannot know which of several fits it serves."""

    def on_train_begin(self, logs: Any = None) -> None:
        _logger.warning(
            "This fit starts afresh and saves no checkpoints: it got a copy of resume_callbacks, "
            "as KerasTuner makes for each trial, and its checkpoints could be those of another "
            "trial. To resume it, call resume_callbacks with another name for each fit, in "
            "HyperModel.fit for example."
        )
