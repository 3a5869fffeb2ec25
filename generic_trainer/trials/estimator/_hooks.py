"""Hooks: what users may add to those of TensorFlow, and how one asks to stop."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

__all__ = ["RunHook", "StopHook"]


class RunHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """A `SessionRunHook` that is also told about checkpoints.

    Only the hooks of the TrainSpec are told::

        class Counter(RunHook):
            def on_checkpoint_load(self, checkpoint_dir):
                self.seen = int((Path(checkpoint_dir) / "seen").read_text())

            def on_checkpoint_end(self, checkpoint_dir):
                (Path(checkpoint_dir) / "seen").write_text(str(self.seen))

    Source: `determined.estimator.RunHook` of Determined 0.13.
    """

    def on_checkpoint_load(self, checkpoint_dir: str) -> None:
        """Called once, before training starts, where it goes on from a checkpoint."""

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Called when a checkpoint is written; a file that is added here is kept with it."""

    def on_trial_close(self) -> None:
        """Called when the trial is over, also when it failed."""


class StopHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Takes a hook's `run_context.request_stop()` for a wish to stop after this workload.

    It comes after the user's hooks. A session that really stopped could not be saved any more.
    """

    def __init__(self, note: Callable[[], None]) -> None:
        """Takes what is called when a hook wants to stop."""
        self._note = note

    def after_run(
        self, run_context: tf.compat.v1.train.SessionRunContext, run_values: object
    ) -> None:
        """Notes the wish and takes it back."""
        if run_context.stop_requested:
            run_context._stop_requested = False  # there is no public way
            self._note()
