"""Functions of TensorFlow: how they are traced, and how they run beside a graph that is built."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import tensorflow as tf

T = TypeVar("T")

# AutoGraph rewrites every function that a function calls, which takes seconds here and changes
# nothing: no control flow of this package depends on a tensor.
traced = tf.autograph.experimental.do_not_convert


def eagerly(function: Callable[[], T]) -> T:
    """Calls a function that runs now, also where a graph is being built.

    Which graph is built belongs to the thread; a new thread has none.
    """
    if tf.executing_eagerly():
        return function()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()
