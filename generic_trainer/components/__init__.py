"""The pipeline component, for DAG definitions."""

from generic_trainer.components._arguments import GenericTrainerSpec
from generic_trainer.components._component import GenericTrainer

__all__ = ["GenericTrainer", "GenericTrainerSpec"]
