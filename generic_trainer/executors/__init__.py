"""The executor behind the component.

`generic_trainer.executors.GenericTrainerExecutor` is a public import path: Kubeflow and Vertex get
it as a string inside a compiled pipeline.
"""

from __future__ import annotations

from generic_trainer.executors._executor import GenericTrainerExecutor

__all__ = ["GenericTrainerExecutor"]
