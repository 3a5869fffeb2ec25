"""PEDL's `TensorFlowTrial`, one TF1 graph for training and validation, and `EstimatorTrial`."""

from typing import TYPE_CHECKING

from generic_trainer._core.lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer.trials.tensorflow._estimator import (
        EstimatorTrial,
        wrap_dataset,
        wrap_optimizer,
    )
    from generic_trainer.trials.tensorflow._trial import TensorFlowTrial

__all__ = ["EstimatorTrial", "TensorFlowTrial", "wrap_dataset", "wrap_optimizer"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {"_estimator": "EstimatorTrial wrap_dataset wrap_optimizer", "_trial": "TensorFlowTrial"},
)
