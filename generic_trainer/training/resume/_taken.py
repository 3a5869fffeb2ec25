"""Files of `tf.train.Checkpoint`, of values that were taken before and are written beside training.

`tf.train.Checkpoint` looks at all objects whenever it writes, which takes tens of milliseconds for
a small model. Here it looks once. To take the values of variables copies nothing: TensorFlow copies
a variable that is changed while somebody holds its value.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.scratch import ScratchFolder

# Writes what was taken into a directory.
Writer: TypeAlias = Callable[[str], None]

_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "/{}/.ATTRIBUTES/VARIABLE_VALUE"
_ITERATOR = "iterator"
_ITERATOR_STATE = f"{_ITERATOR}/.ATTRIBUTES/ITERATOR_STATE"


class TakenVariables:
    """Takes the values of lists of variables, which stay the same ones."""

    def __init__(self, groups: Mapping[str, list[Any]], graph: Any) -> None:
        self._variables = {
            group + _VALUE.format(number): variable
            for group, variables in groups.items()
            for number, variable in enumerate(variables)
        }
        self._graph = graph

    @classmethod
    def of(cls, groups: Mapping[str, Any]) -> TakenVariables | None:
        """Returns it for groups of what `tf.train.Checkpoint(**groups)` writes.

        None where its files have something else than a value for each of some plain variables, a
        strategy keeps several of each, or there is no room for a small file.
        """
        plain = {name: each for name, each in groups.items() if isinstance(each, list)}
        variables = [each for group in plain.values() for each in group]
        if len(plain) < len(groups) or not all(map(_is_plain, variables)):
            return None
        try:
            names, graph = _looked_up(tf.train.Checkpoint(**groups))
        except (OSError, tf.errors.OpError):  # of a full disk
            return None
        taken = cls(plain, graph)
        return taken if names == taken._variables.keys() else None

    def take(self, name: str) -> Writer:
        """Returns what writes the values of this moment.

        Args:
            name: of the files, as the checkpoint's `write` is given it.
        """
        values = {path: variable.read_value() for path, variable in self._variables.items()}
        return functools.partial(_write, name, {**values, _GRAPH: self._graph})


def take_iterator(iterator: tf.data.Iterator, name: str) -> Writer:
    """Returns what writes the state that an iterator over a dataset has at this moment.

    Args:
        iterator: not one of a distribution strategy.
        name: see `TakenVariables.take`.

    Raises:
        tf.errors.OpError, OSError: it has none that can be saved, or there is no room for a file.
    """
    (state,) = internals.TF_ITERATOR_STATE.of(iterator)().values()
    return functools.partial(_write, name, {_ITERATOR_STATE: state, _GRAPH: _graph_of_iterators()})


@functools.cache
def _graph_of_iterators() -> Any:
    iterator = iter(tf.data.Dataset.range(1))
    return _looked_up(tf.train.Checkpoint(**{_ITERATOR: iterator}))[1]


def _looked_up(checkpoint: tf.train.Checkpoint) -> tuple[set[str], Any]:
    """Returns the names of what a checkpoint writes, and how it describes the objects."""
    with ScratchFolder("checkpoint-") as folder:
        reader = tf.train.load_checkpoint(checkpoint.write(os.path.join(folder, "looked_up")))
        names = {*reader.get_variable_to_shape_map()} - {_GRAPH}
        return names, tf.constant(reader.get_tensor(_GRAPH))


def _is_plain(variable: Any) -> bool:
    return isinstance(variable, tf.Variable) and not isinstance(
        variable, tf.distribute.DistributedValues
    )


def _write(name: str, tensors: Mapping[str, Any], directory: str) -> None:
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=os.path.join(directory, name),
            tensor_names=[*tensors],
            shape_and_slices=[""] * len(tensors),
            tensors=[*tensors.values()],
        )
