"""The variables that the training of a model changes, and those that checkpoints do not have."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from generic_trainer.training._walk import walk
from generic_trainer.training.resume._taken import is_table

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
    # Asked once for each class: the answer takes long, and there are a million objects.
    is_variable: Any = functools.cache(lambda kind: issubclass(kind, tf.Variable))
    alive = [each for each in gc.get_objects() if is_variable(type(each))]
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
