"""Parts of fits that end and are resumed."""

import itertools
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf


class Ended(Exception):
    """Ends a fit as an error of the user's would."""


def fn_args(directory: Path | str) -> types.SimpleNamespace:
    """Returns an argument of `run_fn`; each is that of another run."""
    return types.SimpleNamespace(checkpoint_dir=str(directory))


def at_batch(keras: Any, number: int, act: Callable[[], None]) -> Any:
    """Returns a callback that acts after a number of batches of this process; 0 for never."""
    count = itertools.count(1)

    def on_end(batch: int, logs: Any) -> None:
        if next(count) == number:
            act()

    return keras.callbacks.LambdaCallback(on_train_batch_end=on_end)


def ending(keras: Any, number: int) -> Any:
    """Returns a callback that ends a fit after a number of batches; see `at_batch`."""

    def end() -> None:
        raise Ended

    return at_batch(keras, number, end)


def ones(batches: int = 1) -> tf.data.Dataset:
    """Returns equal batches of four examples."""
    return tf.data.Dataset.from_tensors((tf.ones([4, 1]), tf.ones([4, 1]))).repeat(batches)


def values(model: Any) -> list[Any]:
    """Returns the weights of a model."""
    return [each.tolist() for each in model.get_weights()]


def plain(keras: Any) -> Any:
    """Returns a Sequential; converting all of Keras 2's own code would take most of the time."""

    class Plain(keras.Sequential):
        @tf.autograph.experimental.do_not_convert
        def train_step(self, *data: Any) -> Any:
            return super().train_step(*data)

    return Plain
