"""The global random generators."""

from __future__ import annotations

import random

import numpy as np
import tensorflow as tf

__all__ = ["seed_generators"]


def seed_generators(seed: int) -> None:
    """Sets Python's, NumPy's and TensorFlow's, before any of the trial's code runs."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    tf.random.set_seed(seed)
