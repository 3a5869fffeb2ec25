"""PEDL's `TensorFlowTrial`, one TF1 graph for training and validation, and `EstimatorTrial`."""

from generic_trainer.trials._pedl import wrap_dataset, wrap_optimizer
from generic_trainer.trials.estimator import HparamsEstimatorTrial as EstimatorTrial
from generic_trainer.trials.tensorflow._trial import TensorFlowTrial

__all__ = ["EstimatorTrial", "TensorFlowTrial", "wrap_dataset", "wrap_optimizer"]
