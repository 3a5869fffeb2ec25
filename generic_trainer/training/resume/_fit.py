"""The Keras callback that saves checkpoints while `fit` runs, and resumes from them.

A fit is in one of three states:

- *Fresh*: `_fit` is None until `on_train_begin`, and `_callback_state` until the first
  `on_epoch_begin`, because only then all other callbacks are known.
- *Replaying*, if there is a checkpoint: `_replay` goes through what is done already.
- *Running*, from then on: `_replay` is None, and after each step `_after_step` looks at the
  weights, and saves if that is due.
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
    barrier,
    keep_metrics_in_worker_0,
    runtime,
    size,
)
from generic_trainer.training.resume._callback_state import (
    CallbackState,
    is_optional,
    numbers_of,
)
from generic_trainer.training.resume._changes import Changes
from generic_trainer.training.resume._clocks import now
from generic_trainer.training.resume._draws import Draws
from generic_trainer.training.resume._either_keras import Copy, OfEitherKeras
from generic_trainer.training.resume._manager import CheckpointManager, fitting
from generic_trainer.training.resume._not_finite import NanWatch
from generic_trainer.training.resume._position import Position, note_end
from generic_trainer.training.resume._randomness import Unsaved, shared_variables
from generic_trainer.training.resume._reader import (
    data_differ,
    handles_of_data,
    take_position,
)
from generic_trainer.training.resume._replay import Replay, end_of_data
from generic_trainer.training.resume._schedule import CommonStep, Schedule
from generic_trainer.training.resume._state import ModelState, set_attributes
from generic_trainer.training.resume._unsaved_attributes import UnsavedAttributes

_logger = logging.getLogger(__name__)

# Directory of checkpoints → the callback of a fit in this process that has begun and not ended.
_begun: dict[str, Resume] = {}


@dataclasses.dataclass
class _Fit:
    """What is there from `on_train_begin` to the end of a fit.

    Attributes:
        manager: of the checkpoints.
        notice: of SIGTERM.
        notes: a thread for notes, because training would wait for an object store; one for all,
            because to start one waits until it runs, up to 5 ms if others hold the interpreter.
        stop: the step after which all workers stop.
        schedule: of the checkpoints.
        state: of the model.
        draws: of the data.
    """

    manager: CheckpointManager
    notice: SigtermNotice
    notes: concurrent.futures.Executor
    stop: CommonStep
    schedule: Schedule
    state: ModelState
    draws: Draws


class Resume(OfEitherKeras):
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
        self._resources = contextlib.ExitStack()
        # The state; see the top of this file.
        self._fit: Any = None  # a `_Fit`, from `on_train_begin` on
        self._callback_state: Any = None  # a `CallbackState`, once all callbacks are known
        self._replay: Replay | None = None
        self._restored = ""  # path of the checkpoint of the replay
        # How far this fit is, in a replay too.
        self._position = Position()
        self._epoch = 0  # as Keras counts
        self._iterator: Any = None  # of the current epoch
        self._function: Any = None  # of a step
        self._logs: Any = None  # of the last step
        # What is saved.
        self._since: Any = None  # readings of the clocks, before any of a callback
        self._others: list[Any] = []  # callbacks, once the fit has begun an epoch
        self._changes: Any = None  # `Changes` of the model, from the first epoch on
        self._finds_variables = False
        self._unsaved: Unsaved | None = None  # until the first step of this process
        self._unsaved_later: Unsaved | None = None  # until the end of an epoch after it
        self._unsaved_attributes: Any = None  # `UnsavedAttributes`, from the first epoch on
        self._still_s = 0.0  # training stood still for the last checkpoint

    def __reduce__(self) -> Any:
        return Copy, ()

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self._since = now()  # which no callback has read a clock before in this fit

    def on_train_begin(self, logs: Any = None) -> None:
        if self._fit is not None:
            raise ConfigurationError(
                "These callbacks have served one fit already: call resume_callbacks for each fit, "
                "and pass another name, such as resume_callbacks(fn_args, name='fine_tuning')."
            )
        strategy = getattr(self.model, "distribute_strategy", None)
        if strategy is None:
            raise ConfigurationError(
                "resume_callbacks follows a fit of TensorFlow, and Keras' backend is another one: "
                "set KERAS_BACKEND=tensorflow, or leave the callbacks out."
            )
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
            manager = opened.enter_context(self._open_manager(writes=is_chief()))
            _begun[self._directory] = self
            opened.callback(_begun.pop, self._directory)  # and with it the model
            self._fit = fit = _Fit(
                manager,
                notice=opened.enter_context(SigtermNotice(self._grace_s)),
                notes=opened.enter_context(concurrent.futures.ThreadPoolExecutor(1, "notes")),
                stop=opened.enter_context(contextlib.closing(CommonStep(strategy))),
                schedule=opened.enter_context(contextlib.closing(self._schedule_for(strategy))),
                state=ModelState(self.model, self._others),
                draws=Draws(self.model),
            )
            self._nan_watch.begin(self.model, fit.state, self._directory)
            opened.enter_context(self._replaced("on_epoch_begin", self._begin_epoch))
            saved = manager.latest()
            if saved is not None:
                self._replay = Replay(saved, self.model, self.params, fit.state, fit.draws)
                self._restored = saved.path
                self.params[RESUMED] = sum(self._replay.goal.lengths)
                opened.enter_context(self._replay.muting)
            self._resources = opened.pop_all()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        if self._unsaved is not None:
            self._changes.made = {*self._variables()}
        if is_keras_3(self.model):  # whose data draw next, after other callbacks have
            self._fit.draws.begin_epoch(len(self._position.lengths))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._take_steps()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        position, replay = self._position, self._replay
        # Keras 2 calls `on_epoch_end` of a Sequence after this, Keras 3 before it: there
        # the last batch of an epoch is the only moment before the Sequence draws.
        if not is_keras_3(self.model):
            self._fit.draws.end_pass(len(position.lengths))
        position.lengths.append(position.batches)
        position.batches = 0
        self._finds_variables = True  # a validation may have made some
        if replay is not None:
            replay.check_epoch(position)
            if replay.goal.done and position.lengths == replay.goal.lengths:
                self._end_replay(replay)
        elif self._unsaved_later is not None:
            self._fit.state.find_variables()
            of_data = handles_of_data(self._iterator)
            self._unsaved_later.log_of_epoch(self._saved_variables(), of_data)
            self._unsaved_later = None
            self._unsaved_attributes.log()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        position, replay = self._position, self._replay
        count = batch + 1 - position.batches  # more than one in an execution of several steps
        if self._unsaved is not None:  # in a replay, too, the first step is one
            self._fit.state.find_variables()
            self._unsaved.log(self._saved_variables(), handles_of_data(self._iterator))
            self._unsaved, self._unsaved_later = None, self._unsaved
            self._unsaved_attributes.begin()
        elif replay is not None and not self._changes.lacks_variables:
            is_first = not position.consumed
            count = replay.skip(self._iterator, count, is_first=is_first)
        self._changes.lacks_variables = False
        position.consumed += count
        position.batches = batch + 1
        is_last = replay is not None and len(position.lengths) == len(replay.goal.lengths)
        is_end = position.batches >= (self.params.get("steps") or math.inf)
        if is_end and is_keras_3(self.model) and not is_last:
            self._fit.draws.end_pass(len(position.lengths))
        if replay is None:
            self._after_step()
        elif replay.is_over(position):
            self._end_replay(replay)
            if is_end and is_keras_3(self.model):  # a fit that goes on notes the draws of this end
                self._fit.draws.end_pass(len(self._position.lengths))
        elif replay.may_stop(position):  # Keras must leave the epoch where a callback ended it
            self.model.stop_training = position.batches >= replay.goal.lengths[-1]

    def _after_step(self) -> None:
        """Looks at the weights, and saves, or stops, if that is due."""
        fit, position = self._fit, self._position
        position.stopped = self.model.stop_training
        if not position.stopped:  # else a callback has acted
            self._nan_watch.look(self._logs, position)
        if fit.stop.is_due(position.steps, is_wanted=fit.notice.received):
            self._save(wait=True)
            if fit.stop.is_common:
                # Worker 0 alone writes, and the first to end has all stopped.
                with contextlib.suppress(tf.errors.OpError):  # it has saved, and is gone already
                    barrier("has saved before it stops")
            self._end_early()
        # Training stood still, and the thread that wrote beside it had its share of the processors.
        cost_s = self._still_s + fit.manager.processor_s / len(available_cpus())
        if fit.schedule.is_due(position.steps, cost_s, is_writing=fit.manager.is_writing):
            self._save()

    def on_train_end(self, logs: Any = None) -> None:
        """Saves that there is nothing left to train: what follows may still be killed."""
        with contextlib.closing(self):
            if self._replay is not None:
                raise data_differ()
            if self._position.done:
                self._restore()  # other callbacks may have changed the weights once more
                self.model.stop_training = self._position.stops_after
            elif self._position.steps:
                self._position.epochs = self.params["epochs"]
                self._position.done, self._position.stops_after = True, self.model.stop_training
                self._save(wait=True)
            if self._position.done:
                note_end(self._directory, self._run_dir)
            if self._fit.notice.received:
                self._end_early()

    def close(self) -> None:
        """Restores signal handlers and releases the lock on the checkpoints.

        A `fit` that ends calls this; one that raises calls no callback.
        """
        self._resources.close()

    def _begin_steps(self) -> None:
        """Takes over the steps, once no callback can raise or evaluate in `on_train_begin`."""
        self._changes = Changes(self.model)
        self._take_steps()
        self._resources.callback(self._give_back)
        self._unsaved = Unsaved()
        self._unsaved_attributes = UnsavedAttributes(self.model)
        if self._replay is not None:  # other callbacks are not called
            muting = self._replay.muting
            for hook in ("on_epoch_end", "on_train_batch_begin", "on_train_batch_end"):
                call = functools.partial(self._call, hook)
                muting.enter_context(self._replaced(hook, call))
            muting.callback(self._replay.mute_evaluation, False)

    def _take_steps(self) -> None:
        """Takes over the steps, also those of a function that a callback has made anew."""
        function = self.model.train_function
        if function not in (None, self._train):
            if self._function is not None:
                self._changes.step_is_made_anew()
            self._function = function
            self.model.train_function = self._train
            self._finds_variables = True  # it may have another optimizer

    def _give_back(self) -> None:
        if self.model.train_function == self._train:  # and has not been compiled once more
            self.model.train_function = self._function

    def _replaced(self, hook: str, around: Callable[..., Any]) -> Any:
        keras: Any = sys.modules["keras" if is_keras_3(self.model) else "tf_keras"]
        return internals.replaced_method(keras.callbacks.CallbackList, hook, around)

    def _begin_epoch(self, original: Any, callbacks: Any, epoch: int, *args: Any) -> Any:
        """Takes in the other callbacks, which now come before this one; then as `_call`."""
        members: list[Any] = callbacks.callbacks
        if self in members and self._callback_state is None:
            # Last: a checkpoint must have what other callbacks made of the same batch.
            members.sort(key=lambda member: member is self)
            self._nan_watch.waits = any(
                getattr(member, "restore_best_weights", False) for member in members
            )
            others = [
                member
                for member in members[:-1]
                if not (is_progress(member) or is_class_of_keras(type(member), "ProgbarLogger"))
            ]
            self._others += [member for member in others if not is_optional(member)]
            backs_up = any(is_class_of_keras(type(each), "BackupAndRestore") for each in others)
            if backs_up:
                _logger.warning(
                    "BackupAndRestore sets the epoch: beside it, this fit cannot be resumed if it "
                    "is killed. Leave it out: resume_callbacks does its work."
                )
            with self._closed_by_errors():
                self._callback_state = CallbackState(others, self._since, self._run_dir)
                if self._replay is not None and self._replay.goal.first != epoch:
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
        replay = self._replay
        is_next = replay is None or self._position.lengths == replay.goal.lengths
        with self._closed_by_errors():
            if hook != "on_epoch_begin" or not is_next:
                return getattr(self, hook)(*args, **kwargs)
            if replay is not None:
                replay.mute_evaluation(False)
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
        """Calls the model's train function, or during a replay only pretends to."""
        position, replay = self._position, self._replay
        if iterator is not self._iterator:
            self._iterator = iterator
            position.consumed = 0
            self._fit.draws.begin_pass(iterator)
            if replay is not None:
                replay.begin_pass(iterator)
        if replay is None:
            with self._noting():
                self._logs = self._nan_watch.step(self._function, iterator, position)
            return self._logs
        replay.mute_evaluation(True)
        if replay.ends_epoch(position):
            raise end_of_data()
        saved = self._fit.state.saved
        with self._closed_by_errors(), self._changes.explained(saved, self._restored):
            if self._unsaved is not None or self._changes.lacks_variables:
                with self._noting(saved):
                    computed = self._function(iterator)
                replay.step_ends(computed)
            self._logs = replay.logs
        return self._logs

    @contextlib.contextmanager
    def _noting(self, saved: Any = None) -> Iterator[None]:
        """Notes what a step makes and traces, or in a replay has it trace what was saved."""
        if self._unsaved is None:
            with self._changes.traced():
                yield
            return
        before = self._variables()
        with self._changes.traced(saved):
            yield
        self._changes.note_made(before, self._variables())

    def _variables(self) -> list[str]:
        self._fit.state.find_variables()
        return [*self._fit.state.variables]

    def _end_replay(self, replay: Replay) -> None:
        goal, consumed = replay.goal, self._position.consumed
        self._position, self._replay = goal, None
        replay.end(self._iterator, consumed)
        self._restore()  # last, because reading batches again draws from the generators
        self.model.stop_training = goal.stopped or goal.done
        self._fit.schedule.begin(goal.steps)

    def _restore(self) -> None:
        saved, is_done = self._fit.state.saved, self._position.done
        restored = self._changes.restored(saved, self._restored, is_done=is_done)
        with restored, fitting(self._restored):
            self._fit.state.read()
            set_attributes(self.model, saved["attributes"])
            if saved["is_made_anew"]:  # with these attributes
                self.model.make_train_function(force=True)
                self._take_steps()
            self._callback_state.assign(saved["callbacks"], self._restored, is_chief())
            keep_metrics_in_worker_0(self.model, are_sums=True)

    def _save(self, *, wait: bool = False) -> None:
        """Saves beside training; with `wait`, before the fit ends."""
        if self._finds_variables:  # which is no cost of the next
            self._fit.state.find_variables()
            self._changes.log_made_late(self._fit.state.variables)
            self._finds_variables = False
        start_s = time.monotonic()
        position = self._position
        position.streams, position.shared = streaming.is_set(), size() > 1
        position.of_epoch = self.params.get("steps")
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
        write = self._fit.state.take(
            tensors,
            callbacks=self._callback_state.values(),
            logs=numbers_of(self._logs),
            draws=self._fit.draws.values(),
            **self._changes.values(),
        )
        self._fit.manager.settle()  # the one before, which may have failed
        self._fit.manager.save_beside(position.steps, write, dataclasses.asdict(position))
        if wait:
            self._fit.manager.settle()
        self._still_s = time.monotonic() - start_s
        self._fit.notes.submit(note, checkpoint_s=round(self._still_s, 4))
        self._fit.schedule.saved(position.steps)

    def _end_early(self) -> None:
        self.close()
        raise WorkerLostError(
            f"SIGTERM: training was preempted in epoch {self._epoch + 1} after "
            f"{self._position.steps} steps. The next run of the same inputs, code and "
            f"hyperparameters resumes from the checkpoints in {self._fit.manager.directory}.",
            signal="SIGTERM",
        )

    def _saved_variables(self) -> list[Any]:
        """Returns the variables that a checkpoint has, and the owners of some that need none."""
        counting = self.model.distribute_strategy, runtime()  # rows and collectives
        return [*self._fit.state.variables.values(), *shared_variables(self.model), *counting]
