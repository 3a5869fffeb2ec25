"""`init` of `determined.experimental.keras`."""

from __future__ import annotations

from generic_trainer.trials.keras import init

__all__ = ["init"]
