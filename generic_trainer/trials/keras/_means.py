"""Steps of Keras 2 on several workers, as trials were written for them: of means of a share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.keras import is_keras_3
from generic_trainer.training import distributed

_Strategy = tf.distribute.MultiWorkerMirroredStrategy
_tf2: Any = tf.compat.v2.distribute  # the module that Keras 2 imports


@contextlib.contextmanager
def keras_2_means() -> Iterator[None]:
    """Makes optimizers average over all workers, of whom a step knows nothing, if it is Keras 2.

    TensorFlow has a step add up the gradients, of losses divided by the number of slots: compiled
    ones are, but not what a `train_step` computes. Within the context that number is 1 in a step,
    as it was in Determined.
    """
    if is_keras_3() or distributed.size() == 1:
        yield
        return
    own: Any = distributed.runtime().strategy  # type: ignore[union-attr]
    slots = own.num_replicas_in_sync
    known: Any = _Strategy.num_replicas_in_sync

    def in_step(strategy: Any) -> bool:
        replica = tf.distribute.get_replica_context()
        return replica is not None and replica.strategy is strategy

    def number(strategy: Any) -> int:
        return 1 if in_step(strategy) else known.fget(strategy)

    def average(original: Any, optimizer: Any, pairs: Any) -> Any:
        means = [
            (None if gradient is None else tf.math.scalar_mul(1 / slots, gradient), variable)
            for gradient, variable in pairs
        ]
        return original(optimizer, means)

    def loss(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        has_strategy = _tf2.has_strategy
        _tf2.has_strategy = lambda: False  # Keras refuses means of losses that are not compiled
        try:
            value = original(self, *args, **kwargs)
        finally:
            _tf2.has_strategy = has_strategy
        return value * slots if self.reduction == "sum" and in_step(own) else value

    optimizers = tf.keras.optimizers
    with contextlib.ExitStack() as stack:
        for owner, name, around in (
            (optimizers.Optimizer, "aggregate_gradients", average),
            (optimizers.legacy.Optimizer, internals.KERAS_2_AGGREGATE.name, average),
            (tf.keras.losses.Loss, "__call__", loss),
        ):
            stack.enter_context(internals.replaced_method(owner, name, around))
        _Strategy.num_replicas_in_sync = property(number)
        stack.callback(setattr, _Strategy, "num_replicas_in_sync", known)
        yield
