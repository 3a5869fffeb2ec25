"""Files of values that were taken before and are written beside training.

To take the values of variables copies nothing: TensorFlow copies a variable that changes while its
value is in use.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

# Writes taken values into a directory.
Writer: TypeAlias = Callable[[str], None]


class TakenVariables:
    """Takes the values of variables, and of lookup tables."""

    def __init__(self, variables: Mapping[str, Any]) -> None:
        """Looks at the variables.

        Args:
            variables: name in the files → variable or table.
        """
        tables = {name: each for name, each in variables.items() if is_table(each)}
        self._variables = [each for name, each in variables.items() if name not in tables]
        self._tables = [*tables.values()]
        ends = [f"{name}/{end}" for name in tables for end in ("keys", "values")]
        with tf.device("CPU:0"):
            names = [*(name for name in variables if name not in tables), *ends]
            self._names = tf.constant(names, tf.string)

    def take(self, name: str) -> Writer:
        """Returns a writer of the present values into files of a name."""
        tables = [tensor for table in self._tables for tensor in table.export()]
        return functools.partial(
            write_tensors, name, self._names, [*map(_value, self._variables), *tables]
        )


def in_turn(*writers: Writer) -> Writer:
    """Returns a writer that calls several."""

    def write(directory: str) -> None:
        for writer in writers:
            writer(directory)

    return write


def read_variables(path: str, variables: Mapping[str, Any]) -> None:
    """Sets variables and tables to the values in files that `TakenVariables` has had written."""
    reader = tf.train.load_checkpoint(path)
    for name, variable in variables.items():
        if is_table(variable):
            variable.remove(variable.export()[0])
            variable.insert(*(reader.get_tensor(f"{name}/{end}") for end in ("keys", "values")))
        else:
            variable.assign(reader.get_tensor(name))


def names_in(path: str) -> set[str]:
    """Returns the names of the variables and tables in files."""
    names = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    return {name.removesuffix("/keys").removesuffix("/values") for name in names}


def is_table(part: Any) -> bool:
    """Returns whether a part of a model is a lookup table that training can change."""
    kinds = (tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable)
    return isinstance(part, kinds)


def _value(variable: Any) -> tf.Tensor:
    """Returns the value of a variable; that of the first replica if they have none in common."""
    if (
        isinstance(variable, tf.distribute.DistributedValues)
        and variable.synchronization == tf.VariableSynchronization.ON_READ
        and variable.aggregation == tf.VariableAggregation.NONE
    ):
        variable = variable.values[0]
    return variable.read_value()


def write_tensors(name: str, names: Any, tensors: list[Any], directory: str) -> None:
    """Writes tensors by their names into files of a name in a directory."""
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=os.path.join(directory, name),
            tensor_names=names,
            shape_and_slices=tf.fill([len(tensors)], ""),
            tensors=tensors,
        )
