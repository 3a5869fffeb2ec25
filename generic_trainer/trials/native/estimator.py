"""`estimator.init` of Determined 0.12 and 0.13."""

from generic_trainer.trials.estimator import EstimatorNativeContext, init

__all__ = ["EstimatorNativeContext", "init"]
