"""The variables that the training of a model changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import tensorflow as tf

from generic_trainer.training._walk import walk
from generic_trainer.training.resume._taken import is_table

# Path of attributes → a variable of TensorFlow, or a lookup table.
Variables: TypeAlias = dict[str, Any]


def variables_of(model: Any, callbacks: Iterable[Any] = ()) -> dict[str, Variables]:
    """Returns all variables and lookup tables that the training of a model changes, in two groups.

    `weights` are those that the model is made of, `training` those of optimizers, metrics and
    callbacks.
    """
    deferred: dict[str, Any] = {}
    seen: dict[int, Any] = {}
    groups = {"weights": dict(walk(model, seen, deferred))}
    roots = {
        ".optimizer": getattr(model, "optimizer", None),
        ".metrics": list(getattr(model, "metrics", ())),
        **deferred,
        ".callbacks": list(callbacks),
    }
    groups["training"] = {
        name + path: part for name, root in roots.items() for path, part in walk(root, seen)
    }
    return {
        name: {
            path[1:]: part
            for path, part in found.items()
            if isinstance(part, tf.Variable) or is_table(part)
        }
        for name, found in groups.items()
    }
