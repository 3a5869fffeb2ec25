"""The pipeline component, for DAG definitions."""

from __future__ import annotations

from generic_trainer.components._component import GenericTrainer
from generic_trainer.components._spec import GenericTrainerSpec

__all__ = ["GenericTrainer", "GenericTrainerSpec"]
