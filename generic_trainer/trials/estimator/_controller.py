"""Trains, validates, saves and exports an estimator, a workload at a time."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from generic_trainer.errors import ExportError
from generic_trainer.estimator._exports import copy_newest
from generic_trainer.trials._process import write_code
from generic_trainer.trials._trial import TrialRun
from generic_trainer.trials.estimator._checkpoint import (
    copy_state,
    restore_generators,
    write_generators,
)
from generic_trainer.trials.estimator._export import Exports, publish
from generic_trainer.trials.estimator._hooks import RunHook, StopHook
from generic_trainer.trials.estimator._rebuilt import rebuilt, then
from generic_trainer.trials.estimator._receiver import name_default_signature, receiver_of
from generic_trainer.trials.estimator._summaries import plain
from generic_trainer.trials.estimator._training import Training

if TYPE_CHECKING:
    from generic_trainer.trials.estimator._context import EstimatorContext

__all__ = ["EstimatorController"]

_logger = logging.getLogger(__name__)


class EstimatorController:
    """One estimator, its data and where it stands."""

    def __init__(
        self,
        context: EstimatorContext,
        run: TrialRun,
        estimator: Any,
        train_spec: Any,
        eval_spec: Any,
        serving_input_receiver_fns: Mapping[str, Callable[[], Any]],
        *,
        strategy: tf.distribute.Strategy | None = None,
        code: str | None = None,
    ) -> None:
        """Builds the estimator anew for this run; sessions open when they are needed.

        Args:
            context: what the user's functions call back.
            run: the trial.
            estimator: as the user built it.
            train_spec: its data and hooks are used; `max_steps` is the trial's own affair.
            eval_spec: its data, hooks and steps are used; exporters are not.
            serving_input_receiver_fns: what is exported with each checkpoint.
            strategy: what to train in; None is one device.
            code: the file of the user's code, which is kept with checkpoints.
        """
        self._context, self._run, self._code = context, run, code
        self._train_spec, self._eval_spec = train_spec, eval_spec
        self._hooks = [hook for hook in train_spec.hooks or () if isinstance(hook, RunHook)]
        self._folder = tempfile.TemporaryDirectory(prefix="estimator-")
        self._model_dir = os.path.join(self._folder.name, "model")
        self._estimator = rebuilt(estimator, self._model_dir, seed=run.seed, strategy=strategy)
        self._exports = Exports(self._estimator, serving_input_receiver_fns, self._folder.name)
        self._training = Training(self._train, on_stop=self._note_stop)
        self._is_open = False
        self._is_saved = False
        if train_spec.saving_listeners:
            _logger.warning("TrainSpec.saving_listeners are not called: use a RunHook.")

    @property
    def stop_requested(self) -> bool:
        """Whether a hook, or other code by the context, has asked to stop."""
        return self._context.get_stop_requested()

    def train(self, batches: int) -> dict[str, Any]:
        """Trains on the next batches; returns the summaries' values, averaged over them.

        Raises:
            CheckFailedError: the optimizer was not given to `wrap_optimizer`, or the training data
                not to `wrap_dataset`.
            ModuleFileError: the training data ended.
        """
        self._open()
        self._training.start()
        self._context.check_optimizer()
        self._is_saved = False
        return self._training.run(batches)

    def validate(self) -> dict[str, Any]:
        """Returns the metrics of an evaluation, as the estimator calls them."""
        self._write_state()
        spec = self._eval_spec
        hooks = [*(spec.hooks or ()), StopHook(self._note_stop)]
        found = self._estimator.evaluate(
            spec.input_fn, steps=spec.steps, hooks=hooks, name=spec.name
        )
        return plain(found)

    def save(self, directory: str) -> None:
        """Writes state, exports and code; then the hooks add what they want to keep."""
        self._write_state()
        copy_state(self._model_dir, directory)
        self._exports.copy_to(directory)
        write_generators(directory)
        write_code(self._code, directory)
        for hook in self._hooks:
            hook.on_checkpoint_end(directory)

    def export(self, fn_args: Any) -> None:
        """Publishes the export of the checkpoint that this trial stands at.

        Without serving input receiver functions it is one for the features of the validation data.

        Raises:
            ExportError: there are none, and the estimator cannot predict from these features.
        """
        if not self._exports.names:
            self._export_features(fn_args)
            return
        if self._run.checkpoint_dir is None:
            self._write_state()
            self._exports.copy_to(self._folder.name)
        publish(self._run.checkpoint_dir or self._folder.name, self._exports.names, fn_args)

    def close(self) -> None:
        """Ends training, tells the hooks, and deletes the estimator's directory."""
        with contextlib.ExitStack() as stack:  # all of it, whatever fails, from last to first
            stack.callback(self._folder.cleanup)
            for hook in reversed(self._hooks if self._is_open else []):
                stack.callback(hook.on_trial_close)
            stack.callback(self._training.close)

    def _export_features(self, fn_args: Any) -> None:
        if self._run.checkpoint_dir is None:
            self._write_state()
        else:
            copy_state(self._run.checkpoint_dir, self._model_dir)
        folder = os.path.join(self._folder.name, "published")
        try:
            receiver = receiver_of(self._estimator, self._eval_spec.input_fn, fn_args)
            self._estimator.export_saved_model(folder, receiver)
        except Exception as error:  # of the user's model function, for want of labels say
            raise ExportError(
                "There are no serving input receiver functions, and no model can be served for the "
                "features of the validation data. Define build_serving_input_receiver_fns in the "
                f"EstimatorTrial. Found: {type(error).__name__}: {error}"
            ) from error
        copy_newest(folder, fn_args.serving_model_dir)
        name_default_signature(fn_args.serving_model_dir)

    def _open(self) -> None:
        """Goes to where the trial stands, before its first work."""
        if self._is_open:
            return
        self._is_open = True
        if self._run.checkpoint_dir is not None:
            copy_state(self._run.checkpoint_dir, self._model_dir)
            restore_generators(self._run.checkpoint_dir)
            self._is_saved = True
            for hook in self._hooks:
                hook.on_checkpoint_load(self._run.checkpoint_dir)

    def _write_state(self) -> None:
        """Sees to it that the estimator's directory has the state after the last batch."""
        self._open()
        if not self._is_saved:
            self._training.save(self._model_dir)
            self._exports.forget()
            self._is_saved = True

    def _train(self, last_hook: Any) -> None:
        input_fn = then(self._train_spec.input_fn, self._context.resumed)
        hooks = [*(self._train_spec.hooks or ()), StopHook(self._note_stop), last_hook]
        self._estimator.train(input_fn, hooks=hooks)

    def _note_stop(self) -> None:
        self._context.set_stop_requested(True)
