"""What of a model has to be saved: its variables, lookup tables and assets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from generic_trainer.errors import ConfigurationError

__all__ = ["tracked_parts", "weights_of"]


def weights_of(model: Any) -> list[tf.Variable]:
    """Returns TensorFlow's variables behind `model.weights`, in that order.

    A Keras 2 weight is such a variable. A Keras 3 weight wraps one; saved by itself it is found
    again by `tf.saved_model.load` and not by a session, so the wrapper is taken off.

    Raises:
        ConfigurationError: Keras runs on another backend than TensorFlow.
    """
    name = "weights" if hasattr(model, "weights") else "variables"
    return [_unwrapped(weight) for weight in getattr(model, name, ())]


def tracked_parts(root: Any) -> list[Any]:
    """Returns all variables, tables and assets below `root`, each once.

    What serves training alone is left out: optimizers, which would triple the size of the export,
    and metrics. So are the functions of the model, such as a `train_step`, and with them whatever
    they need of the training's cluster.
    """
    parts: dict[int, Any] = {}
    for node in _below(root):
        if isinstance(node, _SAVED):
            parts[id(node)] = node
        elif _is_keras3(node):
            parts.update((id(variable), variable) for variable in map(_unwrapped, node.variables))
    return list(parts.values())


_SAVED = (tf.Variable, tf.saved_model.Asset, tf.saved_model.experimental.TrackableResource)


def _below(root: Any) -> Iterator[Any]:
    seen = {id(root)}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        for child in tf.train.TrackableView.children(node).values():
            if id(child) not in seen and not _serves_training(child):
                seen.add(id(child))
                waiting.append(child)


def _serves_training(node: Any) -> bool:
    is_metric = hasattr(node, "update_state") and hasattr(node, "result")
    return is_metric or hasattr(node, "apply_gradients")


def _is_keras3(node: Any) -> bool:
    return hasattr(node, "stateless_call")


def _unwrapped(weight: Any) -> tf.Variable:
    variable = weight if isinstance(weight, tf.Variable) else weight.value
    if not isinstance(variable, tf.Variable):
        raise ConfigurationError(
            "a SavedModel can be written where Keras' backend is TensorFlow, but the model's "
            f"weights are {type(variable).__module__}.{type(variable).__name__}; set "
            "KERAS_BACKEND=tensorflow, save with model.save('model.keras') and load it there"
        )
    return variable
