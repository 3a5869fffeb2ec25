"""Comparison of the workers' models, variables and numbers of batches before they train.

Without it, TensorFlow's collectives would receive tensors of different types or wait forever for
missing ones, and one row of an embedding could mean a different word in each worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer.training._walk import walk
from generic_trainer.training.distributed._runtime import Runtime


def agree_to_fit(connected: Runtime, model: Any, params: Mapping[str, Any] | None) -> None:
    """Raises an error in all workers unless they train the same model on as many batches.

    Args:
        connected: the connection with the other workers.
        model: a model of Keras 2 or Keras 3.
        params: the `params` of a callback, once `fit` has begun.

    Raises:
        ConfigurationError: models, numbers of batches or numbers of epochs differ.
    """
    connected.agree("at the start of fit", _described(model, params or {}), _different_models)


def agree_on_variables(connected: Runtime, variables: Iterable[Any]) -> None:
    """Raises an error in all workers unless they have the same variables, in the same order.

    Raises:
        ConfigurationError: names, types or shapes differ.
    """
    connected.agree("about to start", _listed("variable", variables), _different_models)


def _described(model: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties of a training that must be equal in all workers."""
    made = model.weights if model.built else []  # Keras 2 makes them in the first step, or raises
    return {
        **_listed("weight", made),
        **dict(_vocabularies(model)),
        "optimizer": type(getattr(model, "optimizer", None)).__name__,
        "epochs": params.get("epochs"),
        "batches of an epoch": params.get("steps"),
        "steps_per_execution": _number(getattr(model, "steps_per_execution", 1)),
    }


def _listed(noun: str, variables: Iterable[Any]) -> dict[str, str]:
    return {
        f"{noun} {number}": f"{_path(each)} {tf.as_dtype(each.dtype).name} {each.shape}"
        for number, each in enumerate(variables)
    }


def _path(variable: Any) -> str:
    return str(getattr(variable, "path", variable.name))  # Keras 3's names are not unique


def _number(value: Any) -> int:
    return int(value.numpy() if hasattr(value, "numpy") else value)  # a variable in Keras 2


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


def _different_models(found: str) -> str:
    return (
        f"The workers do not train the same: {found}. Expected run_fn to build the same model on "
        "all of them, and to give fit the same dataset, of which each worker trains its share."
    )
