"""Checkpoints to resume from: a killed run loses minutes instead of everything.

`CheckpointManager` is for training loops, `resume_callbacks` for Keras's `fit`.
"""

from typing import TYPE_CHECKING

from generic_trainer._core.lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer.training.resume._callbacks import restore_weights, resume_callbacks
    from generic_trainer.training.resume._manager import CheckpointManager, SavedCheckpoint

__all__ = ["CheckpointManager", "SavedCheckpoint", "restore_weights", "resume_callbacks"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_callbacks": "exports_trained_weights restore_weights resume_callbacks",
        "_manager": "CheckpointManager SavedCheckpoint fitting",
        # For trials, whose checkpoints hold the same.
        "_randomness": "OF_PROCESS random_state set_random_state stateful_draws_of_graph undrawn",
        "_reader": "is_of_python not_ahead",
        "_state": "ModelState",
        "generic_trainer.training._plain": "pickled read_state taken_state",
    },
)
