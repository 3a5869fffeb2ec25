"""Tracing of TensorFlow functions, and running them while a graph is being built."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import tensorflow as tf

T = TypeVar("T")

# AutoGraph rewrites every function that a function calls, which takes seconds here and changes
# nothing: no control flow of this package depends on a tensor.
traced = tf.autograph.experimental.do_not_convert


def eagerly(function: Callable[[], T]) -> T:
    """Calls a function eagerly, even while a graph is being built.

    The graph that is being built belongs to a thread; a new thread has none.
    """
    if tf.executing_eagerly():
        return function()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def as_it_stands(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset that `tf.data` neither rewrites nor tunes.

    For passes that set their own threads and buffers. Rewriting takes longer than a short pass, and
    deleting an iterator that is tuned waits for the tuner, for up to half a second.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.with_options(options)
