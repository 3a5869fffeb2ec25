"""Values that each replica of a model has of its own: moving statistics, and counts of metrics.

Such a variable has another value in every replica, and a checkpoint of TensorFlow their mean or
their sum, which is right, and to the last bit another number than what training would go on with.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.cluster import is_one_of_several
from generic_trainer._core.files import gfile
from generic_trainer.training.distributed import rank
from generic_trainer.training.resume._plain import read_arrays, write_arrays
from generic_trainer.training.resume._taken import Writer

_MULTI_WORKER = tf.distribute.MultiWorkerMirroredStrategy
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
            if isinstance(strategy, (tf.distribute.MirroredStrategy, _MULTI_WORKER))
            and strategy.num_replicas_in_sync > 1
            and getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ
            and variable.dtype in _DTYPES
        ]
        own.sort(key=_dtype)
        self._groups = {name: list(group) for name, group in itertools.groupby(own, _dtype)}

    def take(self, name: str) -> Writer:
        """Takes the values, if there are any; all workers of a cluster call this.

        What it returns writes a file of NumPy of that name into a directory. For each dtype the
        file holds an array of its name, with one replica in a row.
        """
        rows = {dtype: self._rows(group) for dtype, group in self._groups.items()}

        def write(directory: str) -> None:
            if rows:
                write_arrays(os.path.join(directory, name), rows)

        return write

    def read(self, path: str) -> None:
        """Sets what `take` has had written, where there are as many replicas as there were then."""
        if not gfile().exists(path):  # one device has none, and an earlier release kept none
            return
        values = read_arrays(path)
        sizes = {name: self._shape(group) for name, group in self._groups.items()}
        if sizes != {name: each.shape for name, each in values.items()}:
            return
        for name, group in self._groups.items():
            ends = np.cumsum([_size(each) for each in group])
            for variable, parts in zip(
                group, np.split(values[name], ends[:-1], axis=1), strict=True
            ):
                local = self._strategy.experimental_local_results(variable)
                for replica, part in zip(local, self._local(parts, len(local)), strict=True):
                    replica.assign(part.reshape(variable.shape))

    def _rows(self, group: list[Any]) -> np.ndarray:
        """Returns the values of variables of one dtype, one replica in a row."""
        local = [self._strategy.experimental_local_results(variable) for variable in group]
        rows = np.zeros(self._shape(group), group[0].dtype.as_numpy_dtype)
        for number, own in enumerate(self._local(rows, len(local[0]))):
            own[:] = np.concatenate([each[number].numpy().ravel() for each in local])
        # Collectives only where there are other processes: of two strategies of one process they
        # have the same numbers, and must be of the same kinds.
        if not isinstance(self._strategy, _MULTI_WORKER):
            return rows
        others = np.zeros_like(rows)
        of_replicas = self._strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(others if _is_not_first(context, local) else rows)
        )
        total: np.ndarray = self._strategy.reduce("SUM", of_replicas, axis=None).numpy()
        return total

    def _shape(self, group: list[Any]) -> tuple[int, int]:
        return self._strategy.num_replicas_in_sync, sum(map(_size, group))

    def _local(self, rows: np.ndarray, count: int) -> np.ndarray:
        """Returns the rows of the replicas of this process, a view."""
        first = count * rank() if is_one_of_several() else 0
        return rows[first : first + count]


def _is_not_first(context: tf.distribute.ReplicaContext, local: list[Any]) -> bool:
    """Whether another replica of this process has given its rows already."""
    return bool(context.replica_id_in_sync_group % len(local[0]))


def _dtype(variable: Any) -> str:
    name: str = variable.dtype.name
    return name


def _size(variable: Any) -> int:
    size: int = variable.shape.num_elements()
    return size
