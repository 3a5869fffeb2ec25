"""Comparison of the workers' models, variables and numbers of batches before they train.

Without it, TensorFlow's collectives would receive tensors of different types or wait forever for
missing ones, and one row of an embedding could mean a different word in each worker.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer.training._walk import walk
from generic_trainer.training.distributed._runtime import Runtime


def agree_to_fit(connected: Runtime, model: Any, params: Mapping[str, Any]) -> None:
    """Raises an error in all workers unless they train the same model on as many batches.

    Args:
        connected: the connection with the other workers.
        model: a model of Keras 2 or Keras 3.
        params: the `params` of a callback, once `fit` has begun.

    Raises:
        ConfigurationError: models, numbers of batches or numbers of epochs differ.
    """
    connected.agree("at the start of fit", [*_facts(model, params)])


def agree_on_variables(connected: Runtime, variables: Iterable[Any]) -> None:
    """Raises an error in all workers unless they have the same variables, in the same order.

    Raises:
        ConfigurationError: names, types or shapes differ.
    """
    connected.agree("about to start", [*_listed("variable", variables)])


def _facts(model: Any, params: Mapping[str, Any]) -> Iterator[str]:
    """Yields the properties of a training that must be equal in all workers."""
    if model.built:  # Keras 2 makes the weights in the first step, or raises
        yield from _listed("weight", model.weights)
    yield from _vocabularies(model)
    yield f"optimizer {type(model.optimizer).__name__}"
    yield f"epochs {params.get('epochs')}"
    yield f"batches of an epoch {params.get('steps')}"
    # A variable in Keras 2.
    yield f"steps_per_execution {int(tf.convert_to_tensor(model.steps_per_execution))}"


def _listed(noun: str, variables: Iterable[Any]) -> Iterator[str]:
    for number, variable in enumerate(variables):
        path = getattr(variable, "path", variable.name)  # Keras 3's names are not unique
        yield f"{noun} {number} {path} {tf.as_dtype(variable.dtype).name} {variable.shape}"


def _vocabularies(model: Any) -> Iterator[str]:
    """Yields the name of each lookup layer, with the number of its entries and their digest."""
    parts = (part for _, part in walk(model))
    layers = [part for part in parts if hasattr(getattr(part, "lookup_table", None), "export")]
    for number, layer in enumerate(layers):
        keys, values = (np.asarray(tensor) for tensor in layer.lookup_table.export())
        order = np.argsort(values, kind="stable")
        text = repr((keys[order].tolist(), values[order].tolist()))
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        yield f"vocabulary {number} of {layer.name}, with {len(keys)} entries ({digest})"
