"""Event files of a trial, beyond its metrics."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import tensorflow as tf

from generic_trainer.trials._trial import current_run
from generic_trainer.trials.keras.callbacks._callback import Callback

__all__ = ["TFKerasTensorBoard", "TensorBoard"]


class TensorBoard(tf.keras.callbacks.TensorBoard, Callback):
    """`tf.keras.callbacks.TensorBoard`, with a validation for an epoch.

    `log_dir` is ignored: the files lie with the trial's others, in the ModelRun artifact.
    """

    on_epoch_end = Callback.on_epoch_end

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes Keras' arguments."""
        kwargs.pop("log_dir", None)
        super().__init__(_log_dir(), *args[1:], **kwargs)
        self.tests = 0

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Writes the validation's metrics, and weights as `histogram_freq` says."""
        logs = logs or {}
        tf.keras.callbacks.TensorBoard.on_test_end(
            self, {name.removeprefix("val_"): logs[name] for name in logs}
        )
        tf.keras.callbacks.TensorBoard.on_epoch_end(self, self.tests, dict(logs))
        self.tests += 1

    def get_state(self) -> dict[str, Any]:
        """Returns where the curves end."""
        return {"tests": self.tests, "batches": getattr(self, "_global_train_batch", 0)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self.tests, self._global_train_batch = state["tests"], state["batches"]


class TFKerasTensorBoard(TensorBoard):
    """What `TensorBoard` was called in Determined 0.12."""


def _log_dir() -> str:
    run = current_run()
    if run is None or run.log_dir is None:
        return tempfile.mkdtemp(prefix="tensorboard-")
    return os.path.join(run.log_dir, "keras")
