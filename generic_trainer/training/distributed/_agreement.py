"""Comparison of the workers' models and numbers of batches before `fit`, in Keras 2 and Keras 3.

Without it, TensorFlow's collectives would receive tensors of different types or wait forever for
missing ones, and one row of an embedding could mean a different word in each worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from generic_trainer._core import internals
from generic_trainer.training.distributed._runtime import Runtime
from generic_trainer.training.distributed._strategy import different_models

_AT = "at the start of fit"


def agree_to_fit(connected: Runtime, model: Any, params: Mapping[str, Any] | None) -> None:
    """Raises an error in all workers unless they train the same model on as many batches.

    Args:
        connected: the connection with the other workers.
        model: a model of Keras 2 or Keras 3.
        params: the `params` of a callback, once `fit` has begun.

    Raises:
        ConfigurationError: models, numbers of batches or numbers of epochs differ.
    """
    connected.agree(_AT, _described(model, params or {}), different_models)


def agreeing_callback(keras: ModuleType, connected: Runtime) -> Any:
    """Returns a callback of the given Keras that calls `agree_to_fit` when `fit` begins."""

    class Agreement(keras.callbacks.Callback):  # type: ignore[name-defined, misc]
        """Stops all workers unless they train the same model on as many batches."""

        def on_train_begin(self, logs: Any = None) -> None:
            agree_to_fit(connected, self.model, self.params)

    return Agreement()


def layers_of(model: Any) -> list[Any]:
    """Returns the layers of a model, including layers nested inside other layers."""
    lookup = internals.KERAS_3_LOOKUP_LAYER.name
    found: dict[int, Any] = {}
    waiting = list(getattr(model, "layers", ()))
    while waiting:
        layer = waiting.pop(0)
        if id(layer) not in found:
            found[id(layer)] = layer
            inner = [*getattr(layer, "layers", ()), getattr(layer, lookup, None)]
            waiting += [each for each in inner if each is not None]
    return list(found.values())


def _described(model: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties of a training that must be equal in all workers."""
    made = model.weights if model.built else []  # Keras 2 makes them in the first step, or raises
    weights = {
        f"weight {number}": f"{_path(each)} {_dtype(each)} {tuple(each.shape)}"
        for number, each in enumerate(made)
    }
    return {
        **weights,
        **dict(_vocabularies(model)),
        "optimizer": type(getattr(model, "optimizer", None)).__name__,
        "epochs": params.get("epochs"),
        "batches of an epoch": params.get("steps"),
        "steps_per_execution": _number(getattr(model, "steps_per_execution", 1)),
    }


def _number(value: Any) -> int:
    return int(value.numpy() if hasattr(value, "numpy") else value)  # a variable in Keras 2


def _path(weight: Any) -> str:
    return str(getattr(weight, "path", None) or weight.name)


def _dtype(weight: Any) -> str:
    return str(getattr(weight.dtype, "name", weight.dtype))


def _vocabularies(model: Any) -> Iterator[tuple[str, str]]:
    """Yields the name of each lookup layer, with the number of its entries and their digest."""
    for number, layer in enumerate(layers_of(model)):
        table = getattr(layer, "lookup_table", None)
        if table is None or not hasattr(table, "export"):
            continue
        keys, values = (np.asarray(each) for each in table.export())
        order = np.argsort(values, kind="stable")
        text = repr((keys[order].tolist(), values[order].tolist()))
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        yield f"vocabulary of layer {number}, {layer.name}", f"{len(keys)} entries ({digest})"
