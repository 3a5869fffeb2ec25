"""`init` of `determined.experimental.keras`."""

from generic_trainer.trials.keras import init

__all__ = ["init"]
