"""Functions for `tf.data` that are traced as they are written."""

from __future__ import annotations

import tensorflow as tf

__all__ = ["traced"]

# AutoGraph rewrites every function that a function calls, which takes seconds here and changes
# nothing: no control flow of this package depends on a tensor.
traced = tf.autograph.experimental.do_not_convert
