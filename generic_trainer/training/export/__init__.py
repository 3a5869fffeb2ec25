"""Writing a trained model so that every consumer downstream can use it.

::

    from generic_trainer.training import export_model

    def run_fn(fn_args):
        model = train(...)
        export_model(model, fn_args, label_keys=("tips",))
"""

from __future__ import annotations

from generic_trainer.training.export._export import export_model

__all__ = ["export_model"]
