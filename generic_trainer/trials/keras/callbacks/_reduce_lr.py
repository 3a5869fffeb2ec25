"""Lowers the learning rate when a validation metric no longer improves."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer.trials.keras.callbacks._callback import Callback
from generic_trainer.trials.keras.callbacks._monitor import Monitor

__all__ = ["ReduceLROnPlateau"]


class ReduceLROnPlateau(Monitor, tf.keras.callbacks.ReduceLROnPlateau, Callback):
    """`tf.keras.callbacks.ReduceLROnPlateau`, its `patience` counted in validations.

    The learning rate is reported with the validation metrics, as "lr".
    """

    _kept = ("wait", "best", "cooldown_counter")
    on_epoch_end = Callback.on_epoch_end

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Looks at the metric."""
        logs = {} if logs is None else logs
        self.begin()
        rate = float(np.asarray(self.model.optimizer.learning_rate))
        tf.keras.callbacks.ReduceLROnPlateau.on_epoch_end(self, self.tests, dict(logs))
        logs["lr"] = rate
        self.tests += 1
