"""The base class of callbacks that need more than Keras tells."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["Callback"]


class Callback(tf.keras.callbacks.Callback):
    """A Keras callback with more hooks, and with state that checkpoints keep.

    What differs from Keras:

    1. Validation does not end an epoch: `on_test_end` gets its metrics, `val_` before their names,
       and what it changes or adds is reported.
    2. An epoch is `records_per_epoch // global_batch_size` batches. `on_epoch_end` always gets an
       empty dict. Overriding it without `records_per_epoch` in the configuration is an error.
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
        """Returns what checkpoints have to keep; anything that pickles."""
        return None

    def load_state(self, state: Any) -> None:
        """Takes back what `get_state` returned; called after `on_train_begin`."""
