"""Files of `tf.train.Checkpoint`, of values that were taken before and are written beside training.

`tf.train.Checkpoint` looks at all objects whenever it writes, which takes tens of milliseconds for
a small model. Here it looks once. To take the values of variables copies nothing, and is one call
for all of them: TensorFlow copies a variable that is changed while somebody holds its value.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from generic_trainer._core import internals

# Writes what was taken into a directory.
Writer: TypeAlias = Callable[[str], None]

_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "/{}/.ATTRIBUTES/VARIABLE_VALUE"
_ITERATOR = "iterator"
_ITERATOR_STATE = f"{_ITERATOR}/.ATTRIBUTES/ITERATOR_STATE"


class TakenVariables:
    """Takes the values of lists of variables, which stay the same ones."""

    def __init__(self, variables: Mapping[str, tf.Variable], graph: tf.Tensor) -> None:
        self._names, self._graph = _constant([*variables, _GRAPH]), graph
        handles = [(each.handle, each.dtype) for each in variables.values()]

        @tf.autograph.experimental.do_not_convert
        def read() -> list[tf.Tensor]:
            return [tf.raw_ops.ReadVariableOp(resource=one, dtype=dtype) for one, dtype in handles]

        self._variables = [*variables.values()]  # a function does not keep what it reads
        self._read = tf.function(read).get_concrete_function()

    @classmethod
    def of(cls, groups: Mapping[str, Any]) -> TakenVariables | None:
        """Returns it for groups of what `tf.train.Checkpoint(**groups)` writes.

        None where its files have something else than a value for each of some plain variables, or a
        strategy keeps several of each.
        """
        if not all(isinstance(each, list) for each in groups.values()):
            return None
        variables = {
            group + _VALUE.format(number): variable
            for group, members in groups.items()
            for number, variable in enumerate(members)
        }
        if not all(map(_is_plain, variables.values())):
            return None
        names, graph = _looked_up(tf.train.Checkpoint(**groups))
        return cls(variables, graph) if names == variables.keys() else None

    def take(self, name: str) -> Writer:
        """Returns what writes the values of this moment.

        Args:
            name: of the files, as the checkpoint's `write` is given it.
        """
        return functools.partial(_write, name, self._names, [*self._read(), self._graph])


def take_iterator(iterator: tf.data.Iterator, name: str) -> Writer:
    """Returns what writes the state that an iterator over a dataset has at this moment.

    Args:
        iterator: not one of a distribution strategy.
        name: see `TakenVariables.take`.

    Raises:
        tf.errors.OpError: it has none that can be saved.
    """
    (state,) = internals.TF_ITERATOR_STATE.of(iterator)().values()
    names, graph = _description_of_iterators()
    return functools.partial(_write, name, names, [state, graph])


@functools.cache
def _description_of_iterators() -> tuple[tf.Tensor, tf.Tensor]:
    iterator = iter(tf.data.Dataset.range(1))
    _, graph = _looked_up(tf.train.Checkpoint(**{_ITERATOR: iterator}))
    return _constant([_ITERATOR_STATE, _GRAPH]), graph


def _looked_up(checkpoint: tf.train.Checkpoint) -> tuple[set[str], Any]:
    """Returns the names of what a checkpoint writes, and how it describes the objects."""
    view = internals.TF_CHECKPOINT_VIEW.get()(checkpoint)
    tensors, *_, graph = internals.TF_CHECKPOINT_TENSORS.get()(view)
    names = {name for each in tensors.values() for name in each}
    return names, _constant(graph.SerializeToString())


def _constant(texts: Any) -> tf.Tensor:
    with tf.device("CPU:0"):
        return tf.constant(texts)


def _is_plain(variable: Any) -> bool:
    return isinstance(variable, tf.Variable) and not isinstance(
        variable, tf.distribute.DistributedValues
    )


def _write(name: str, names: tf.Tensor, tensors: list[Any], directory: str) -> None:
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=os.path.join(directory, name),
            tensor_names=names,
            shape_and_slices=tf.fill([len(tensors)], ""),
            tensors=tensors,
        )
