"""`init` of `determined.experimental.estimator`."""

from generic_trainer.trials.estimator import init

__all__ = ["init"]
