"""The variables and lookup tables that the training of a model changes, and files of their values.

To take the values of variables copies nothing: TensorFlow copies a variable that changes while its
value is in use. Files of them are written beside training.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from generic_trainer.training._walk import walk

# Path of attributes, after the start of its group → a variable of TensorFlow, or a lookup table.
Variables: TypeAlias = dict[str, Any]
# Name in files → value.
Tensors: TypeAlias = dict[str, tf.Tensor]

_TABLES = (tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable)
_KINDS = (tf.Variable, *_TABLES)
WEIGHTS = "weights/"
_ENDS = ("keys", "values")  # of the names of a table's tensors


def variables_of(model: Any, callbacks: Iterable[Any] = ()) -> Variables:
    """Returns all variables and lookup tables that the training of a model changes.

    The names of those that the model is made of begin with `WEIGHTS`; the others are variables of
    optimizers, metrics and callbacks.
    """
    deferred: dict[str, Any] = {}
    seen: dict[int, Any] = {}
    parts = [(WEIGHTS + path[1:], part) for path, part in walk(model, seen, deferred)]
    roots = {
        ".optimizer": getattr(model, "optimizer", None),
        ".metrics": list(getattr(model, "metrics", ())),
        **deferred,
        ".callbacks": list(callbacks),
    }
    for name, root in roots.items():
        parts += [(f"training/{name[1:]}{path}", part) for path, part in walk(root, seen)]
    return {name: part for name, part in parts if isinstance(part, _KINDS)}


def taken(variables: Mapping[str, Any]) -> Tensors:
    """Returns the present values of variables and tables."""
    values: Tensors = {}
    for name, variable in variables.items():
        if isinstance(variable, _TABLES):
            values |= zip((f"{name}/{end}" for end in _ENDS), variable.export(), strict=True)
        else:
            values[name] = _value(variable)
    return values


def write_tensors(path: str, tensors: Tensors) -> None:
    """Writes tensors into files."""
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=path,
            tensor_names=[*tensors],
            shape_and_slices=tf.fill([len(tensors)], ""),
            tensors=[*tensors.values()],
        )


def read_variables(path: str, variables: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """Sets variables and tables to their values in files of `write_tensors`.

    Returns:
        The names of variables that the files have not, and of values for no variable.
    """
    reader = tf.train.load_checkpoint(path)
    values = {*reader.get_variable_to_shape_map()}
    missing = set()
    for name, variable in variables.items():
        is_table = isinstance(variable, _TABLES)
        names = [f"{name}/{end}" for end in _ENDS] if is_table else [name]
        if not values.issuperset(names):
            missing.add(name)
            continue
        values.difference_update(names)
        if is_table:
            variable.remove(variable.export()[0])
            variable.insert(*map(reader.get_tensor, names))
        else:
            variable.assign(reader.get_tensor(name))
    return missing, values


def _value(variable: Any) -> tf.Tensor:
    """Returns the value of a variable; that of the first replica if they have none in common."""
    if (
        isinstance(variable, tf.distribute.DistributedValues)
        and variable.synchronization == tf.VariableSynchronization.ON_READ
        and variable.aggregation == tf.VariableAggregation.NONE
    ):
        variable = variable.values[0]
    return variable.read_value()
