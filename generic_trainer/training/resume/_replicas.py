"""Variables with another value in every replica: moving statistics, and counts of metrics.

A checkpoint of TensorFlow has the mean or the sum over the replicas, which is right, but not equal
to the last bit to the values that training would continue with.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from generic_trainer.training.distributed import gather, rank, size

_MULTI_WORKER = tf.distribute.MultiWorkerMirroredStrategy


class OwnOfReplicas:
    """The variables of a model whose values differ between replicas; few models have any."""

    def __init__(self, strategy: tf.distribute.Strategy, variables: Iterable[Any]) -> None:
        """Looks at variables, which were made in the scope of the strategy.

        Args:
            strategy: of the model.
            variables: TensorFlow's, and lookup tables.
        """
        self._strategy = strategy
        self._spans_workers = isinstance(strategy, _MULTI_WORKER)
        self._own = [
            variable
            for variable in variables
            if isinstance(strategy, (tf.distribute.MirroredStrategy, _MULTI_WORKER))
            and strategy.num_replicas_in_sync > 1
            and getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ
        ]

    def values(self) -> list[Any]:
        """Returns for each worker, variable and replica an array; all workers call this."""
        values = [[part.numpy() for part in self._parts(each)] for each in self._own]
        return gather(values) if self._own and self._spans_workers else [values]

    def assign(self, of_workers: list[Any]) -> None:
        """Restores the result of `values`, if there are as many replicas as there were then.

        It may be that of more variables, the first of which these are.
        """
        number, workers = (rank(), size()) if self._spans_workers else (0, 1)
        parts = [self._parts(each) for each in self._own]
        arrays = of_workers[number][: len(parts)] if len(of_workers) == workers else []
        if [*map(len, arrays)] == [*map(len, parts)]:
            for variable, array in zip(
                tf.nest.flatten(parts), tf.nest.flatten(arrays), strict=True
            ):
                variable.assign(array)

    def _parts(self, variable: Any) -> tuple[Any, ...]:
        """Returns the variables of the replicas of this process."""
        parts: tuple[Any, ...] = self._strategy.experimental_local_results(variable)
        return parts
