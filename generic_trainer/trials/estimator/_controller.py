"""The controller of an estimator trial: training, validation, export and checkpoints.

The files of a checkpoint, to which hooks may add::

    checkpoint  model.ckpt-300.{index,meta,data-…}    the session
    <name>/<time>/saved_model.pb                      an export per receiver function
    rng_state.pickle                                  random generators, now and at the start
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from generic_trainer import estimator as tf_estimator
from generic_trainer._core import internals
from generic_trainer._core.cluster import is_chief
from generic_trainer._core.files import gfile
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer.data import counting_anew
from generic_trainer.errors import ModuleFileError
from generic_trainer.training import distributed
from generic_trainer.training.resume import (
    is_of_python,
    random_state,
    read_state,
    set_random_state,
    taken_state,
    undrawn,
)
from generic_trainer.trials._context import average
from generic_trainer.trials._estimator_exports import export_features
from generic_trainer.trials._trial import TrialRun
from generic_trainer.trials.estimator._training import StopHook, Training

if TYPE_CHECKING:
    from generic_trainer.trials.estimator._context import EstimatorContext

_GENERATORS = "rng_state"
_START = "start"  # in a state of generators: that in which the training began

_logger = logging.getLogger(__name__)


class RunHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """A `SessionRunHook` that is also called for checkpoints.

    Only the hooks of the TrainSpec are called::

        class Counter(RunHook):
            def on_checkpoint_load(self, checkpoint_dir):
                self.seen = int((Path(checkpoint_dir) / "seen").read_text())

            def on_checkpoint_end(self, checkpoint_dir):
                (Path(checkpoint_dir) / "seen").write_text(str(self.seen))

    Source: `determined.estimator.RunHook` of Determined 0.13.
    """

    def on_checkpoint_load(self, checkpoint_dir: str) -> None:
        """Called once, before training starts, if it goes on from a checkpoint."""

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Called when a checkpoint is written; a file that is added here is kept with it."""

    def on_trial_close(self) -> None:
        """Called when the trial is over, also when it failed."""


class _Batches(StopHook):
    """Counts the batches of an evaluation, which takes one even if no metric depends on it."""

    count = 0

    def begin(self) -> None:
        operations = tf.compat.v1.get_default_graph().get_operations()
        self._taken = [
            operation for operation in operations if operation.type == "IteratorGetNext"
        ][:1]

    def before_run(self, run_context: object) -> Any:
        return tf.compat.v1.train.SessionRunArgs(self._taken)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        super().after_run(run_context, run_values)
        self.count += 1


class EstimatorController:
    """One estimator, its data and its progress."""

    def __init__(
        self,
        context: EstimatorContext,
        run: TrialRun,
        estimator: Any,
        train_spec: Any,
        eval_spec: Any,
        serving_input_receiver_fns: Mapping[str, Callable[[], Any]],
    ) -> None:
        """Builds the user's estimator anew for this run, and restores the checkpoint of the trial.

        Sessions open when they are needed.

        The data and hooks of both specs are used, and the steps of `eval_spec`; `max_steps` is the
        trial's own affair.
        """
        self._context = context
        self._run = run
        self._train_spec = train_spec
        self._eval_spec = eval_spec
        self._hooks = [hook for hook in train_spec.hooks or () if isinstance(hook, RunHook)]
        self._folder = ScratchFolder("estimator-")
        self._model_dir = os.path.join(self._folder.path, "model")
        os.makedirs(self._model_dir)  # TensorFlow makes it only on the chief, and all workers save
        self._estimator = _rebuilt(estimator, self._model_dir, run)
        self._receivers = dict(serving_input_receiver_fns)
        self._on_stop = functools.partial(context.set_stop_requested, True)
        self._training = Training(self._train, on_stop=self._on_stop)
        self._start_state: dict[str, Any] | None = None
        self._is_saved = run.checkpoint_dir is not None
        if run.checkpoint_dir is not None:
            _copy_state(run.checkpoint_dir, self._model_dir)
            state = read_state(run.checkpoint_dir, _GENERATORS)
            self._start_state = state.get(_START)
            set_random_state(None, state)
            for hook in self._hooks:
                hook.on_checkpoint_load(run.checkpoint_dir)
        if train_spec.saving_listeners:
            _logger.warning("TrainSpec.saving_listeners are not called: use a RunHook.")

    @property
    def stop_requested(self) -> bool:
        return self._context.get_stop_requested()

    def train(self, batches: int) -> dict[str, Any]:
        """Trains on the next batches; returns the summaries' values, averaged over them.

        Raises:
            CheckFailedError: the optimizer was not given to `wrap_optimizer`, or the training data
                not to `wrap_dataset`.
            ModuleFileError: the training data ended.
        """
        self._begin()
        self._context.check_optimizer()
        self._is_saved = False
        with distributed.explained_failures():
            return average(self._training.run(batches))

    def validate(self) -> dict[str, Any]:
        """Returns the metrics of an evaluation, as the estimator calls them."""
        self._write_state()
        spec = self._eval_spec
        batches = _Batches(self._on_stop)
        hooks = [*(spec.hooks or ()), batches]
        with contextlib.ExitStack() as stack:
            stack.enter_context(tf_estimator.as_slot())
            stack.enter_context(tf_estimator.refuse_endless(spec))
            # Each validation reads in the same order, so one after a restart does, too.
            stack.enter_context(counting_anew())
            stack.enter_context(undrawn())
            metrics = self._estimator.evaluate(
                spec.input_fn, steps=spec.steps, hooks=hooks, name=spec.name
            )
        if not any(distributed.gather(batches.count)):  # all its metrics are 0: it would be best
            raise ModuleFileError("build_validation_spec: the validation data have no batch")
        return dict(metrics)

    def save(self, directory: str) -> None:
        """Writes state and exports; then the hooks add their files."""
        self._write_state()
        _copy_state(self._model_dir, directory)
        for name, receiver in self._receivers.items():
            self._estimator.export_saved_model(os.path.join(directory, name), receiver)
        taken_state(_GENERATORS, {**random_state(), _START: self._start_state})(directory)
        for hook in self._hooks if is_chief() else ():
            hook.on_checkpoint_end(directory)

    def export(self, fn_args: Any, checkpoint_dir: str | None = None) -> None:
        """Publishes the export of a checkpoint; without one, of the state that the trial has now.

        Without serving input receiver functions it is one for the features of the validation data.

        Raises:
            ExportError: there are none, and the estimator cannot predict from these features.
        """
        if checkpoint_dir is None:
            checkpoint_dir = os.path.join(self._folder.path, "now")
            self.save(checkpoint_dir)
        if self._receivers:
            name, *others = self._receivers
            if others:
                _logger.warning("The export %r is published; others: %s", name, ", ".join(others))
            written = os.path.join(checkpoint_dir, name)
            tf_estimator.copy_newest(written, fn_args.serving_model_dir)
        else:
            _copy_state(checkpoint_dir, self._model_dir)
            folder = os.path.join(self._folder.path, "published")
            export_features(self._estimator, self._eval_spec.input_fn, folder, fn_args)

    def close(self) -> None:
        """Ends training, calls the hooks, and deletes the estimator's directory."""
        # All callbacks run, from last to first, even if one fails.
        with contextlib.ExitStack() as stack:
            stack.callback(self._folder.close)
            for hook in reversed(self._hooks if self._training.started else []):
                stack.callback(hook.on_trial_close)
            stack.callback(self._training.close)

    def _begin(self) -> None:
        """Opens the session; the user's functions draw what they drew in the straight run.

        They make the data and the graph, and may shuffle a list of files. A generator draws when
        it is read, from the first batch on, so it gets that state too, and keeps it.
        """
        if self._training.started:
            return
        now = random_state()
        if self._start_state is None:
            self._start_state = now
        set_random_state(None, self._start_state, in_all_workers=True)  # they are seeded alike
        self._training.start()
        if self._run.checkpoint_dir is not None and not is_of_python(self._training.graph):
            set_random_state(None, now)

    def _write_state(self) -> None:
        """Sees to it that the estimator's directory has the state after the last batch."""
        if not self._is_saved:
            self._begin()
            self._training.save(self._model_dir)
            self._is_saved = True

    def _train(self, last_hook: Any) -> None:
        input_fn = self._train_spec.input_fn

        @functools.wraps(input_fn)
        def resumed(*args: Any, **kwargs: Any) -> Any:
            return self._context.resumed(input_fn(*args, **kwargs))

        # Estimators look at the names of the arguments, through no wrapper.
        resumed.__signature__ = inspect.signature(input_fn)  # type: ignore[attr-defined]
        hooks = [*(self._train_spec.hooks or ()), last_hook]
        with tf_estimator.as_slot():
            self._estimator.train(resumed, hooks=hooks)


def _copy_state(source: str, target: str) -> None:
    """Copies the newest state of a session from one directory to another."""
    newest = os.path.basename(tf.train.latest_checkpoint(source))
    gfile().makedirs(target)
    for name in gfile().listdir(source):
        if name == "checkpoint" or name.startswith(f"{newest}."):
            gfile().copy(os.path.join(source, name), os.path.join(target, name), overwrite=True)


def _rebuilt(estimator: Any, model_dir: str, run: TrialRun) -> Any:
    """Returns the user's estimator with a configuration for this trial.

    Checkpoints are not written periodically, but when the trial asks for one. Sessions place softly
    where the user's `session_config` does not decide. One device trains and evaluates.
    """
    config = estimator.config.replace(
        model_dir=model_dir,
        tf_random_seed=run.seed,
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
        keep_checkpoint_max=1,
        train_distribute=None,
        eval_distribute=None,
    )
    rebuilt = tf_estimator.Estimator(
        internals.ESTIMATOR_MODEL_FN.of(estimator),
        config=config,
        params=estimator.params or None,
        warm_start_from=internals.ESTIMATOR_WARM_START.of(estimator),
    )
    call_model_fn = internals.ESTIMATOR_CALL_MODEL_FN.of(rebuilt)

    def with_saver(*args: Any, **named: Any) -> Any:
        spec = call_model_fn(*args, **named)
        if spec.scaffold.saver is not None:  # of Keras models, for example: `Training` looks here
            tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.SAVERS, spec.scaffold.saver)
        return spec

    internals.ESTIMATOR_CALL_MODEL_FN.set(rebuilt, with_saver)
    return rebuilt
