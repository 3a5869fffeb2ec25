"""Random numbers that a checkpoint can keep."""

from __future__ import annotations

import tensorflow as tf

__all__ = ["seed_keras"]


def seed_keras(seed: int) -> None:
    """Sets the random generators of Python, NumPy, TensorFlow and Keras.

    Keras 2 is also made to draw from generators that are variables, as Keras 3 always does, so that
    `Dropout` goes on after a restart as it would have gone on without.
    """
    tf.keras.utils.set_random_seed(seed % 2**32)
    tf.random.set_global_generator(tf.random.Generator.from_seed(seed))
    experimental = getattr(tf.keras.backend, "experimental", None)
    if experimental is not None:
        experimental.enable_tf_random_generator()
