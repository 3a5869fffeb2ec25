"""`keras.init` of Determined 0.12 and 0.13."""

from generic_trainer.trials.keras import TFKerasNativeContext, init

__all__ = ["TFKerasNativeContext", "init"]
