"""Functions for a `run_fn`: strategy, checkpoints to resume from, export.

::

    from generic_trainer import training

    def run_fn(fn_args):
        with training.get_strategy().scope():
            model = build(...)
        model.fit(..., callbacks=training.resume_callbacks(fn_args))
        training.export_model(model, fn_args, label_keys=("tips",))
        if training.is_chief():
            write_summary(fn_args.model_run_dir)
"""

from typing import TYPE_CHECKING

from generic_trainer._core.lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer._core.cluster import is_chief
    from generic_trainer.training import distributed
    from generic_trainer.training._strategy import get_strategy
    from generic_trainer.training.export import export_model
    from generic_trainer.training.resume import (
        CheckpointManager,
        SavedCheckpoint,
        restore_weights,
        resume_callbacks,
    )

__all__ = [
    "CheckpointManager",
    "SavedCheckpoint",
    "distributed",
    "export_model",
    "get_strategy",
    "is_chief",
    "restore_weights",
    "resume_callbacks",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        # Three are for launchers, which call `run_fn` within them, and one for estimators.
        "_autograph": "keras_2_left_alone keras_2_unconverted",
        "_strategy": "get_strategy checked_on_several_workers",
        "_watch": "watched",
        "export": "export_model",
        "generic_trainer._core.cluster": "is_chief",
        "resume": "CheckpointManager SavedCheckpoint restore_weights resume_callbacks",
    },
)
