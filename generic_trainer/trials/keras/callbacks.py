"""Callbacks that know workloads, checkpoints and their own state.

Source: `determined.keras.callbacks` of Determined 0.13.
"""

import os
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer.trials._trial import current_run

__all__ = ["Callback", "EarlyStopping", "ReduceLROnPlateau", "TFKerasTensorBoard", "TensorBoard"]


class Callback(tf.keras.callbacks.Callback):
    """A Keras callback with more hooks, and with state that checkpoints keep.

    What differs from Keras:

    1. Validation does not end an epoch: `on_test_end` gets its metrics, `val_` before their names,
       and its changes to them are reported.
    2. An epoch is `records_per_epoch // global_batch_size` batches, at least one. `on_epoch_end`
       always gets an empty dict. Overriding it without `records_per_epoch` in the configuration is
       an error; then `on_epoch_begin` is called once, before the first batch.
    3. `model.stop_training = True` ends training after the workload, with a checkpoint.
    """

    def on_train_workload_begin(
        self, total_batches_trained: int, batches_requested: int | None, logs: dict[str, Any]
    ) -> None:
        """Is called before a stretch of training.

        Args:
            total_batches_trained: in all, so far.
            batches_requested: how many the stretch has.
            logs: empty.
        """

    def on_train_workload_end(self, total_batches_trained: int, logs: dict[str, Any]) -> None:
        """Is called after a stretch of training.

        Args:
            total_batches_trained: in all, so far.
            logs: the metrics of the stretch.
        """

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Is called when a checkpoint is written, and may add files to it."""

    def get_state(self) -> Any:
        """Returns what checkpoints have to keep.

        Numbers, texts, arrays, random generators, and lists, tuples and dicts of them; and objects
        of classes of your own that pickle. Tensors come back as arrays.
        """
        return None

    def load_state(self, state: Any) -> None:
        """Takes back what `get_state` returned; called after `on_train_begin`."""


class _Monitor(Callback):
    """What Keras' callbacks that look at a metric need to look at validations instead of epochs.

    Attributes:
        tests: validations so far.
    """

    _kept: tuple[str, ...] = ()
    monitor: str
    tests = 0
    on_epoch_end = Callback.on_epoch_end

    def begin(self) -> None:
        """Sets up what Keras 3 otherwise sets up, and resets, at the first epoch's end."""
        if getattr(self, "monitor_op", True) is None:
            best = getattr(self, "best", None)
            set_monitor_op = internals.KERAS_3_SET_MONITOR_OP.of(self)
            try:
                set_monitor_op()
            except ValueError:  # Keras 3 does not know the metric; Keras 2 went by its name
                larger_is_better = "acc" in self.monitor or self.monitor.endswith("auc")
                self.mode = "max" if larger_is_better else "min"
                set_monitor_op()
            if self.tests:
                self.best = best

    def get_state(self) -> dict[str, Any]:
        """Returns its counters."""
        return {name: getattr(self, name, None) for name in (*self._kept, "tests")}

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        for name, value in state.items():
            setattr(self, name, value)


class EarlyStopping(_Monitor, tf.keras.callbacks.EarlyStopping):
    """`tf.keras.callbacks.EarlyStopping`, its `patience` counted in validations.

    With `restore_best_weights` they are restored when training stops, before its checkpoint.
    """

    _kept = ("wait", "stopped_epoch", "best", "best_epoch", "best_weights")

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Looks at the metric."""
        self.begin()
        tf.keras.callbacks.EarlyStopping.on_epoch_end(self, self.tests, logs)
        self.tests += 1
        if self.model.stop_training and self.restore_best_weights and self.best_weights:
            self.model.set_weights(self.best_weights)


class ReduceLROnPlateau(_Monitor, tf.keras.callbacks.ReduceLROnPlateau):
    """`tf.keras.callbacks.ReduceLROnPlateau`, its `patience` counted in validations.

    The learning rate is reported with the validation metrics, as "lr".
    """

    _kept = ("wait", "best", "cooldown_counter")

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Looks at the metric."""
        logs = {} if logs is None else logs
        self.begin()
        rate = float(np.asarray(self.model.optimizer.learning_rate))
        tf.keras.callbacks.ReduceLROnPlateau.on_epoch_end(self, self.tests, dict(logs))
        logs["lr"] = rate
        self.tests += 1


class TensorBoard(tf.keras.callbacks.TensorBoard, Callback):
    """`tf.keras.callbacks.TensorBoard`, with a validation for an epoch.

    `log_dir` is ignored: the files are with the trial's others, in the ModelRun artifact.
    """

    on_epoch_end = Callback.on_epoch_end

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes Keras' arguments."""
        kwargs.pop("log_dir", None)
        run = current_run()
        self._folder = ScratchFolder("tensorboard-")  # of a trial that has no place for them
        log_dir = os.path.join((run and run.log_dir) or self._folder.path, "keras")
        super().__init__(log_dir, *args[1:], **kwargs)
        self.tests = 0

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Writes the validation's metrics, and weights if `histogram_freq` is set."""
        logs = logs or {}
        tf.keras.callbacks.TensorBoard.on_test_end(
            self, {name.removeprefix("val_"): logs[name] for name in logs}
        )
        tf.keras.callbacks.TensorBoard.on_epoch_end(self, self.tests, dict(logs))
        self.tests += 1

    def get_state(self) -> dict[str, Any]:
        """Returns where the curves end."""
        return {"tests": self.tests, "batches": internals.KERAS_TENSORBOARD_BATCH.of(self)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self.tests = state["tests"]
        internals.KERAS_TENSORBOARD_BATCH.set(self, state["batches"])


class TFKerasTensorBoard(TensorBoard):
    """What `TensorBoard` was called in Determined 0.12."""
