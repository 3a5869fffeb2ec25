"""Stops training when a validation metric no longer improves."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from generic_trainer.trials.keras.callbacks._callback import Callback
from generic_trainer.trials.keras.callbacks._monitor import Monitor

__all__ = ["EarlyStopping"]


class EarlyStopping(Monitor, tf.keras.callbacks.EarlyStopping, Callback):
    """`tf.keras.callbacks.EarlyStopping`, its `patience` counted in validations.

    With `restore_best_weights` they are restored when training stops, before its checkpoint.
    """

    _kept = ("wait", "stopped_epoch", "best", "best_epoch", "best_weights")
    on_epoch_end = Callback.on_epoch_end

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Looks at the metric."""
        self.begin()
        tf.keras.callbacks.EarlyStopping.on_epoch_end(self, self.tests, logs)
        self.tests += 1
        if self.model.stop_training and self.restore_best_weights and self.best_weights:
            self.model.set_weights(self.best_weights)
