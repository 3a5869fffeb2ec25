"""What data loaders return, for annotations.

Source: `determined.keras.ArrayLike` and `InputData` of Determined 0.12 and 0.13; `KerasInputData`
is the name in its first release.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from generic_trainer.trials.keras._sequence import SequenceAdapter

__all__ = ["ArrayLike", "InputData", "KerasInputData"]

ArrayLike: TypeAlias = np.ndarray | list[np.ndarray] | dict[str, np.ndarray]
InputData: TypeAlias = tf.keras.utils.Sequence | tf.data.Dataset | SequenceAdapter | tuple[Any, ...]
KerasInputData: TypeAlias = InputData
