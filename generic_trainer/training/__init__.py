"""What the author of a `run_fn` may call.

::

    from generic_trainer import training

    def run_fn(fn_args):
        model = train(...)
        training.export_model(model, fn_args, label_keys=("tips",))
        if training.is_chief():
            write_summary(fn_args.model_run_dir)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from generic_trainer._lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer.training._cluster import is_chief
    from generic_trainer.training._steps import steps_for
    from generic_trainer.training.export import export_model

__all__ = ["export_model", "is_chief", "steps_for"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "export_model": "generic_trainer.training.export",
        "is_chief": "generic_trainer.training._cluster",
        "steps_for": "generic_trainer.training._steps",
    },
)
