"""`TensorFlowTrial`, one TF1 graph for training and validation, sessions run by the harness."""

from typing import TYPE_CHECKING

from generic_trainer._core.lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer.trials.tensorflow._trial import TensorFlowTrial

__all__ = ["TensorFlowTrial"]

__getattr__, __dir__ = lazy_names(__name__, {"_trial": "TensorFlowTrial"})
