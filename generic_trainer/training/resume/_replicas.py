"""Variables with another value in every replica: moving statistics, and counts of metrics.

A checkpoint of TensorFlow has the mean or the sum over the replicas, which is right, but not equal
to the last bit to the values that training would continue with.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from generic_trainer._core.files import gfile
from generic_trainer.training.distributed import gather, rank
from generic_trainer.training.resume._plain import read_state, taken_state
from generic_trainer.training.resume._taken import Writer

_MULTI_WORKER = tf.distribute.MultiWorkerMirroredStrategy
_DTYPES = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


class OwnOfReplicas:
    """The variables of a model whose values differ between replicas; few models have any."""

    def __init__(self, strategy: tf.distribute.Strategy, variables: Iterable[Any]) -> None:
        """Looks at variables, which were made in the scope of the strategy.

        Args:
            strategy: of the model.
            variables: TensorFlow's or Keras 3's.
        """
        self._strategy = strategy
        tensorflows = (each if isinstance(each, tf.Variable) else each.value for each in variables)
        self._own = [
            variable
            for variable in {id(each): each for each in tensorflows}.values()
            if isinstance(strategy, (tf.distribute.MirroredStrategy, _MULTI_WORKER))
            and strategy.num_replicas_in_sync > 1
            and getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ
            and variable.dtype in _DTYPES
        ]

    def take(self, name: str) -> Writer:
        """Takes the values, if there are any; all workers of a cluster call this.

        The result writes files of that name into a directory: for each worker, variable and replica
        an array.
        """
        if not self._own:
            return lambda directory: None
        values = [[part.numpy() for part in self._parts(each)] for each in self._own]
        of_workers = gather(values) if isinstance(self._strategy, _MULTI_WORKER) else [values]
        return taken_state(name, of_workers)

    def read(self, directory: str, name: str) -> None:
        """Restores the files of `take`, if there are as many replicas as there were then."""
        if not (self._own and gfile().exists(os.path.join(directory, f"{name}.json"))):
            return  # one device has none
        parts = [self._parts(each) for each in self._own]
        of_workers = read_state(directory, name)
        is_several = isinstance(self._strategy, _MULTI_WORKER)
        number = rank() if is_several else 0
        replicas = sum(len(values[0]) for values in of_workers)
        if replicas != self._strategy.num_replicas_in_sync or number >= len(of_workers):
            return
        values = of_workers[number]
        if [[*map(_shape, each)] for each in values] != [[*map(_shape, each)] for each in parts]:
            return
        for variables, arrays in zip(parts, values, strict=True):
            for variable, array in zip(variables, arrays, strict=True):
                variable.assign(array)

    def _parts(self, variable: Any) -> tuple[Any, ...]:
        """Returns the variables of the replicas of this process."""
        parts: tuple[Any, ...] = self._strategy.experimental_local_results(variable)
        return parts


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape)
