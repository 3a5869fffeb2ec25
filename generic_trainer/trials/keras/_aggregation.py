"""Steps of several batches in a Keras trial: `optimizations.aggregation_frequency`.

Batches are trained on by two functions. One adds up gradients; that of the last batch of a step has
the optimizer apply them. Neither asks where it stands while it runs: under a strategy of several
devices the gradients could not be reduced within a `tf.cond`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.keras import is_keras_3
from generic_trainer.training import distributed
from generic_trainer.trials._trial import HorovodContext

_OWN_OF_DEVICES = {
    "synchronization": tf.VariableSynchronization.ON_READ,
    "aggregation": tf.VariableAggregation.SUM,
}


class Aggregation:
    """How many batches make a step, and what their gradients have added up to."""

    def __init__(self, config: HorovodContext) -> None:
        """Takes what the configuration says."""
        self._every = config.aggregation_frequency
        self._factor = 1 / self._every if config.average_aggregated_gradients else 1.0
        self._is_last = True  # whether the batch that is trained on, or traced, ends a step
        self._sums: dict[int, tf.Variable] = {}  # by the identity of what is trained
        self._functions: dict[bool, Callable[[Any], Any]] = {}  # by whether they end a step

    @property
    def sums(self) -> list[tf.Variable]:
        """The sums of gradients, in the order in which they were made."""
        return [*self._sums.values()]

    def take(self, optimizers: Iterable[Any]) -> None:
        """Has optimizers, before their first step, apply the gradients of several batches."""
        for optimizer in optimizers if self._every > 1 else ():
            inner = getattr(optimizer, "inner_optimizer", optimizer)  # of one that scales the loss
            # It stays the object that callbacks, schedules and the model know.
            object.__setattr__(inner, "__class__", self._subclass(type(inner), inner))

    def function(self, model: Any, batch: int) -> Callable[[Any], Any]:
        """Returns what trains a compiled model on the next batch, after `batch` others."""
        self._is_last = (batch + 1) % self._every == 0
        if model.train_function is None:  # also where it was compiled once more
            self._functions.clear()
        if self._is_last not in self._functions:
            model.train_function = None  # or this would be what is returned
            made = model.make_train_function()
            self._functions[self._is_last] = made or model.train_function  # Keras 3 returns nothing
        return self._functions[self._is_last]

    def _subclass(self, kind: type[Any], optimizer: Any) -> type[Any]:
        @distributed.averaging
        def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> None:
            variables = trainable_variables or internals.KERAS_3_TRAINED.of(optimizer)
            pairs = self._added(optimizer, zip(grads, variables, strict=True))
            if self._is_last:
                kind.apply(optimizer, *zip(*pairs, strict=True))

        def apply_gradients(optimizer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = self._added(optimizer, grads_and_vars)
            if self._is_last:
                return kind.apply_gradients(optimizer, pairs, *args, **kwargs)
            return optimizer.iterations

        method = apply if is_keras_3(optimizer) else apply_gradients
        members = {method.__name__: method, "__module__": kind.__module__}
        return type(kind.__name__, (kind,), members)

    def _added(self, optimizer: Any, grads_and_vars: Iterable[Any]) -> list[tuple[Any, Any]]:
        """Adds gradients up; at the end of a step returns the sums or means, which begin anew."""
        pairs = list(grads_and_vars)
        # Each device adds up its own, and the optimizer reduces that, unless it is reduced already.
        is_reduced = isinstance(tf.distribute.get_strategy(), distributed.DataParallelStrategy)
        options = {} if is_reduced else _OWN_OF_DEVICES
        with tf.init_scope():  # a checkpoint has all variables, also before the first step
            build_optimizer(optimizer, [variable for _, variable in pairs])
            for _, variable in pairs:
                if id(variable) not in self._sums:
                    self._sums[id(variable)] = tf.Variable(
                        tf.zeros(variable.shape, variable.dtype), trainable=False, **options
                    )
        steps = []
        for gradient, variable in pairs:
            if gradient is not None:
                kept = self._sums[id(variable)]
                total = kept.read_value() + tf.convert_to_tensor(gradient)
                kept.assign(tf.zeros_like(total) if self._is_last else total)
                gradient = total * tf.cast(self._factor, total.dtype)
            steps.append((gradient, variable))
        return steps


def build_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Makes the variables of an optimizer, where they are not there yet."""
    if not hasattr(optimizer, "build"):
        internals.KERAS_2_LEGACY_BUILD.of(optimizer)(variables)
    elif not (is_keras_3(optimizer) and optimizer.built):
        optimizer.build(variables)
