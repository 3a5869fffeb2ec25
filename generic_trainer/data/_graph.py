"""Tracing of TensorFlow functions, and running them while a graph is being built."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import tensorflow as tf

T = TypeVar("T")

# AutoGraph rewrites every function that a function calls, which takes seconds here and changes
# nothing: no control flow of this package depends on a tensor.
traced = tf.autograph.experimental.do_not_convert


def eagerly(function: Callable[[], T]) -> T:
    """Calls a function eagerly, even while a graph is being built.

    The graph that is being built belongs to a thread; a new thread has none. After
    `tf.compat.v1.disable_eager_execution`, a function is eager as an op of a session.
    """
    if tf.executing_eagerly():
        return function()
    with ThreadPoolExecutor(1) as pool:
        if pool.submit(tf.executing_eagerly).result():
            return pool.submit(function).result()
    outcome: Future[T] = Future()

    def call() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:  # which the op would turn into another
            outcome.set_exception(error)

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        session.run(tf.py_function(call, [], []))
    return outcome.result()


def as_it_stands(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset that `tf.data` neither rewrites nor tunes.

    For passes that set their own threads and buffers. Rewriting takes longer than a short pass, and
    deleting an iterator that is tuned waits for the tuner, for up to half a second.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.with_options(options)
