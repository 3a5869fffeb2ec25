"""A trained model as a SavedModel that every consumer downstream can use.

Most modules need `export_model` alone. `export_on_tensors` writes a model that is not called with
features of tf.Examples; `inference_arguments` is for calling a model that may take `training`.
"""

from typing import TYPE_CHECKING

from generic_trainer._core.lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer.training.export._export import export_model, export_on_tensors
    from generic_trainer.training.export._inputs import inference_arguments

__all__ = ["export_model", "export_on_tensors", "inference_arguments"]

__getattr__, __dir__ = lazy_names(
    __name__, {"_export": "export_model export_on_tensors", "_inputs": "inference_arguments"}
)
