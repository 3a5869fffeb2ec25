"""The variables of a model, found by following its attributes.

Neither Keras lists all of them. Keras 3 leaves out optimizers other than `model.optimizer` and
every plain `tf.Variable`; Keras 2 leaves out variables of objects that TensorFlow does not track.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from generic_trainer._core.keras import is_keras_3
from generic_trainer.training.resume._taken import is_table

_SCALARS = {type(None), bool, int, float, complex, str, bytes}
# An object of Keras or TensorFlow that has one of these methods holds state: a layer, a metric, a
# loss, a generator. Their other objects lead to graphs of symbolic tensors.
_STATEFUL = ("__call__", "variables", "next", "random_uniform")
_LIBRARIES = {"keras", "tf_keras", "tensorflow"}
_OPAQUE = {*sys.stdlib_module_names, "numpy", "generic_trainer"}
_MOST_COMPARED = 1000

# Path of attributes → a variable of TensorFlow, or a lookup table.
Variables: TypeAlias = dict[str, Any]


def variables_of(model: Any, callbacks: Iterable[Any] = ()) -> dict[str, Variables]:
    """Returns all variables that the training of a model changes, in groups.

    `weights` are the variables that the model is made of, `training` those of optimizers, metrics
    and callbacks. A third group, `tables`, has mutable lookup tables; few models have any.
    """
    deferred: dict[str, Any] = {}
    seen: dict[int, Any] = {}
    parts = {"weights": dict(walk(model, seen, deferred)), "training": Variables()}
    roots = {
        ".optimizer": getattr(model, "optimizer", None),
        ".metrics": list(getattr(model, "metrics", ())),
        **deferred,
        ".callbacks": list(callbacks),
    }
    for name, root in roots.items():
        parts["training"].update((name + path, part) for path, part in walk(root, seen))
    groups = {
        name: {path[1:]: part for path, part in found.items() if isinstance(part, tf.Variable)}
        for name, found in parts.items()
    }
    tables = {path[1:]: part for path, part in parts["weights"].items() if is_table(part)}
    return {**groups, "tables": tables} if tables else groups


def walk(
    root: Any, seen: dict[int, Any] | None = None, deferred: dict[str, Any] | None = None
) -> Iterator[tuple[str, Any]]:
    """Yields the parts of an object with their paths, each part once.

    The shortest path comes first, so that neither the order in which attributes were set nor their
    number changes the path of a part.

    Args:
        root: a model, for example.
        seen: `id` → part, of those that are not visited again; gets those that are visited.
        deferred: gets the optimizers and metrics below `root` by their paths, instead of a visit.
    """
    seen = {} if seen is None else seen
    waiting = collections.deque([("", root)])
    while waiting:
        path, part = waiting.popleft()
        if id(part) in seen:
            continue
        if deferred is not None and part is not root and _serves_training(part):
            deferred.setdefault(path, part)
            continue
        seen[id(part)] = part
        if _is_keras_variable(part):
            part = part.value
            if id(part) in seen:
                continue
            seen[id(part)] = part
        yield path, part
        children = sorted(_children(part), key=lambda child: child[0])
        waiting.extend((f"{path}.{name}", child) for name, child in children)


class UntrackedVariables:
    """Variables that a step of training changes although no checkpoint has them."""

    def __init__(self, known: Iterable[Any]) -> None:
        """Looks at the variables of this process before the step.

        Args:
            known: the variables that a checkpoint has.
        """
        self._before = {id(each): (each, _sample(each)) for each in _others(known)}

    def changed(self, known: Iterable[Any]) -> list[str]:
        """Returns the names of those that are new after the step, or have other values."""
        names = set()
        for variable in _others(known):
            _, before = self._before.get(id(variable), (None, None))
            after = _sample(variable)
            if after is not None and (before is None or not np.array_equal(before, after)):
                names.add(variable.name)
        return sorted(names)


def _others(known: Iterable[Any]) -> list[Any]:
    # A variable of several replicas, or with another dtype, wraps further variables.
    ids = {id(part) for each in known for part in (each, *_wrapped(each))}
    alive = [each for each in gc.get_objects() if issubclass(type(each), tf.Variable)]
    return [
        each
        for each in alive
        if id(each) not in ids
        and not _wrapped(each)
        and type(each).__name__ != "_UnreadVariable"  # returned by `assign` within functions
    ]


def _wrapped(variable: Any) -> list[Any]:
    held = [
        each if isinstance(each, (tuple, list)) else (each,)
        for each in getattr(variable, "__dict__", {}).values()
    ]
    return [part for parts in held for part in parts if issubclass(type(part), tf.Variable)]


def _sample(variable: Any) -> np.ndarray | None:
    """Returns the first numbers of a variable; None if it has none, or no value yet."""
    with contextlib.suppress(Exception):  # not even a strange variable may fail a run
        dtype = variable.dtype
        is_number = dtype.is_floating or dtype.is_integer or dtype.is_bool
        if is_number and hasattr(variable.handle, "numpy"):  # not one of a graph
            numbers: np.ndarray = tf.reshape(variable, [-1])[:_MOST_COMPARED].numpy()
            return numbers
    return None


def _children(part: Any) -> Iterator[tuple[str, Any]]:
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(part, Mapping):
        items = part.items()
    elif isinstance(part, (list, tuple, collections.deque)):
        items = enumerate(part)
    elif _is_followed(part):
        items = list(vars(part).items())
    for number, (name, value) in enumerate(items):
        if type(value) not in _SCALARS:
            # Keys of other types may be named otherwise in another process.
            yield name if isinstance(name, str) else f"{number:06}", value


def _is_followed(part: Any) -> bool:
    kind = type(part)
    if isinstance(part, (type, tf.Variable, tf.Tensor)) or not hasattr(part, "__dict__"):
        return False
    package = kind.__module__.partition(".")[0]
    if package in _LIBRARIES:
        is_optimizer = kind.__module__.startswith("tensorflow.python.training.")
        return is_optimizer or any(hasattr(kind, name) for name in _STATEFUL)
    return package not in _OPAQUE


def _is_keras_variable(part: Any) -> bool:
    """Returns whether a part is a variable of Keras 3, which has one of TensorFlow."""
    return (
        not isinstance(part, tf.Variable)
        and hasattr(type(part), "value")
        and is_keras_3(part)
        and isinstance(part.value, tf.Variable)
    )


def _serves_training(part: Any) -> bool:
    kind = type(part)
    is_metric = hasattr(kind, "update_state") and hasattr(kind, "result")
    return is_metric or hasattr(kind, "apply_gradients")
