"""Comparison of the workers' models, variables and numbers of batches before they train.

Without it, TensorFlow's collectives would receive tensors of different types or wait forever for
missing ones, and one row of an embedding could mean a different word in each worker.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer.errors import ConfigurationError
from generic_trainer.training._walk import walk
from generic_trainer.training.distributed._runtime import Runtime

_FIXED = np.cos(np.arange(1.0, 1 << 16))
_ROUNDING = 1e-3  # differences of this share of a variable's norm


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


def agree_on_values(connected: Runtime, model: Any) -> None:
    """Raises an error in all workers unless a fit has given their models the same weights.

    Args:
        connected: the connection with the other workers.
        model: a model of Keras 3.

    Raises:
        ConfigurationError: trainable weights or variables of the optimizer differ.
    """
    of_optimizer = getattr(model.optimizer, "variables", ())  # a train_step may have its own
    variables = [*model.trainable_variables, *of_optimizer]
    variables = [each for each in variables if tf.as_dtype(each.dtype).is_floating]
    own = {f"{number} {each.path}": _summary(each) for number, each in enumerate(variables)}
    of_all = connected.exchange("at the end of fit", own)
    common = set(own).intersection(*of_all)  # a callback may have frozen layers of one worker
    for name, variable in zip(own, variables, strict=True):
        if name not in common:
            continue
        dots, norms = zip(*(of_worker[name] for of_worker in of_all), strict=True)
        atol = _ROUNDING * (max(norms) if np.isfinite(norms).all() else 0.0)
        close = np.isclose(dots, dots[0], rtol=0, atol=atol, equal_nan=True)
        if not np.all(close):
            raise ConfigurationError(
                f"The workers have trained different models: {variable.path} has other values in "
                f"{connected.tasks[int(np.argmin(close))].name} than in {connected.tasks[0].name}. "
                "Expected all workers to change variables alike: by an optimizer, whose gradients "
                "are averaged. A callback sees the logs of its worker's share during an epoch; "
                "where it sets a variable by them, such as the learning rate, let it do so at the "
                "end of an epoch, or by training.distributed.all_reduce of the logs. A train_step "
                "that assigns weights itself needs training.distributed.average_gradients."
            )


def _summary(variable: Any) -> tuple[float, float]:
    """Returns the product of a variable's values with fixed numbers, and their norm.

    Values of other machines or of a GPU may be rounded otherwise, so that a digest would differ.
    """
    values = np.ravel(variable.numpy())
    dot = square = 0.0
    for start in range(0, values.size, _FIXED.size):
        part = values[start : start + _FIXED.size].astype(np.float64)
        dot += float(part @ _FIXED[: part.size])
        square += float(part @ part)
    return dot, square**0.5


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
