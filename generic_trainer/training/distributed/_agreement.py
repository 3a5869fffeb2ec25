"""Comparison of the workers' models and numbers of batches before `fit`, in Keras 2 and Keras 3.

Without it, TensorFlow's collectives would receive tensors of different types or wait forever for
missing ones, and one row of an embedding could mean a different word in each worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from generic_trainer.training._walk import walk
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
    layers = [part for _, part in walk(model) if hasattr(part, "lookup_table")]
    for number, layer in enumerate(layers):
        if not hasattr(layer.lookup_table, "export"):
            continue
        keys, values = (np.asarray(each) for each in layer.lookup_table.export())
        order = np.argsort(values, kind="stable")
        text = repr((keys[order].tolist(), values[order].tolist()))
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        yield f"vocabulary {number}, of {layer.name}", f"{len(keys)} entries ({digest})"
