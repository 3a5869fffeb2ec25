"""What each replica of a model has of its own: moving statistics, and what its metrics count.

Such a variable has another value in every replica, and a checkpoint of TensorFlow their mean or
their sum, which is right, and to the last bit another number than what training would go on with.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from generic_trainer._core.files import gfile
from generic_trainer.training.resume._plain import read_arrays, write_arrays

_MIRRORED = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
# What workers can exchange can be of no other types.
_DTYPES = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


class OwnOfReplicas:
    """Those of some variables of which each replica has a value of its own; maybe none."""

    def __init__(self, strategy: tf.distribute.Strategy, variables: Iterable[Any]) -> None:
        """Looks at variables, which were made in the scope of the strategy.

        Args:
            strategy: of the model.
            variables: TensorFlow's or Keras 3's.
        """
        self._strategy = strategy
        tensorflows = (each if isinstance(each, tf.Variable) else each.value for each in variables)
        own = [
            variable
            for variable in {id(each): each for each in tensorflows}.values()
            if isinstance(strategy, _MIRRORED)
            and strategy.num_replicas_in_sync > 1
            and getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ
            and variable.dtype in _DTYPES
        ]
        by_dtype = itertools.groupby(
            sorted(own, key=lambda each: each.dtype.name), lambda each: each.dtype.name
        )
        self._groups = {name: list(group) for name, group in by_dtype}
        self._rows = tf.function(self._own_rows)

    def write(self, path: str) -> None:
        """Writes a file of NumPy, if there are any; all workers of a cluster call this.

        For each dtype it holds an array of its name, with one replica in a row.
        """
        if self._groups:
            rows = self._strategy.run(self._rows)
            write_arrays(path, {name: self._sum(each).numpy() for name, each in rows.items()})

    def read(self, path: str) -> None:
        """Sets what `write` has written, where there are as many replicas as there were then."""
        if not gfile().exists(path):  # one device has none, and an earlier release kept none
            return
        values = read_arrays(path)
        replicas = self._strategy.num_replicas_in_sync
        sizes = {name: (replicas, sum(map(_size, group))) for name, group in self._groups.items()}
        if sizes and sizes == {name: each.shape for name, each in values.items()}:
            self._strategy.run(tf.function(self._assign), args=(values,))

    def _own_rows(self) -> dict[str, tf.Tensor]:
        """Returns the values by dtype, with zeros in the rows of the other replicas."""
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        rows = {}
        for name, group in self._groups.items():
            row = tf.concat([tf.reshape(each.read_value(), [-1]) for each in group], axis=0)
            shape = [self._strategy.num_replicas_in_sync, row.shape[0]]
            rows[name] = tf.scatter_nd([[replica]], row[None], shape)
        return rows

    def _sum(self, of_replicas: Any) -> tf.Tensor:
        # Collectives only where there are other processes: of two strategies of one process they
        # have the same numbers, and must be of the same kinds.
        if isinstance(self._strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return self._strategy.reduce(tf.distribute.ReduceOp.SUM, of_replicas, axis=None)
        return tf.add_n(self._strategy.experimental_local_results(of_replicas))

    def _assign(self, values: dict[str, tf.Tensor]) -> None:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        for name, group in self._groups.items():
            parts = tf.split(tf.gather(values[name], replica), list(map(_size, group)))
            for variable, part in zip(group, parts, strict=True):
                variable.assign(tf.reshape(part, variable.shape))


def _size(variable: Any) -> int:
    size: int = variable.shape.num_elements()
    return size
