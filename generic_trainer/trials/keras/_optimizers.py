"""Optimizers as trials that were written for older Keras make them, and their variables."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.keras import is_keras_3


@contextlib.contextmanager
def old_arguments() -> Iterator[None]:
    """Gives `lr` and `decay` of optimizers their old meaning: newer Keras ignores or refuses them.

    Both Kerases define optimizers whose first argument is `learning_rate`.
    """
    kinds: list[Any] = [one for one in vars(tf.keras.optimizers).values() if isinstance(one, type)]
    with contextlib.ExitStack() as stack:
        for kind in dict.fromkeys(kinds):
            init = kind.__init__
            is_own = "__init__" in vars(kind)
            if is_own and [*inspect.signature(init).parameters][1:2] == ["learning_rate"]:
                kind.__init__ = _with_old_arguments(init)
                stack.callback(setattr, kind, "__init__", init)
        yield


def _with_old_arguments(init: Callable[..., None]) -> Callable[..., None]:
    default = inspect.signature(init).parameters["learning_rate"].default

    @functools.wraps(init)
    def with_old_arguments(
        self: Any, learning_rate: Any = default, *args: Any, **kwargs: Any
    ) -> None:
        rate, decay = kwargs.pop("lr", learning_rate), kwargs.pop("decay", 0)
        if decay:
            rate = tf.keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay)
        init(self, rate, *args, **kwargs)

    return with_old_arguments


def build_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Makes the variables of an optimizer, where they are not there yet."""
    if not hasattr(optimizer, "build"):
        internals.KERAS_2_LEGACY_BUILD.of(optimizer)(variables)
    elif not (is_keras_3(optimizer) and optimizer.built):
        optimizer.build(variables)
