"""Callbacks that know workloads, checkpoints and their own state.

Source: `determined.keras.callbacks` of Determined 0.13.
"""

from __future__ import annotations

from generic_trainer.trials.keras.callbacks._callback import Callback
from generic_trainer.trials.keras.callbacks._early_stopping import EarlyStopping
from generic_trainer.trials.keras.callbacks._reduce_lr import ReduceLROnPlateau
from generic_trainer.trials.keras.callbacks._tensorboard import TensorBoard, TFKerasTensorBoard

__all__ = [
    "Callback",
    "EarlyStopping",
    "ReduceLROnPlateau",
    "TFKerasTensorBoard",
    "TensorBoard",
]
