"""`init` of `determined.experimental.estimator`."""

from __future__ import annotations

from generic_trainer.trials.estimator import init

__all__ = ["init"]
