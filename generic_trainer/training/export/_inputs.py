"""Which features a model declares as its inputs."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import tensorflow as tf

__all__ = ["Declared", "accepts_training", "declared_inputs"]


@dataclasses.dataclass(frozen=True)
class Declared:
    """One input.

    Attributes:
        name: the feature that the model wants; None where the input has no name.
        dtype: its type; None for any.
        sparse: whether it takes a `tf.SparseTensor`; None for either.
    """

    name: str | None
    dtype: tf.DType | None = None
    sparse: bool | None = None


def declared_inputs(model: Any) -> Any:
    """Returns the model's inputs, `Declared` in the structure that the model is called with.

    Sources, in this order: the `input` of a functional or sequential Keras model, what a subclassed
    Keras model was built or called with, and the `input_signature` of a `tf.function`.

    Returns:
        The structure, or None for a model that declares nothing.
    """
    if _attribute(model, "inputs"):
        return _declared(model.input)
    saved = _called(model, "save_spec")
    if saved:
        return _declared(saved[0][0])
    shapes = (_called(model, "get_build_config") or {}).get("input_shape")
    if isinstance(shapes, dict):
        return {name: Declared(name) for name in shapes}
    signature = getattr(_call_of(model), "input_signature", None)
    return _declared(signature[0]) if signature else None


def accepts_training(model: Any) -> bool:
    """Whether the model can be told that this is no training."""
    function = getattr(model, "call", None) or _call_of(model)
    parameters = inspect.signature(getattr(function, "python_function", function)).parameters
    return "training" in parameters


def _call_of(model: Any) -> Any:
    is_function = hasattr(model, "get_concrete_function")
    return model if is_function else getattr(model, "__call__", model)  # noqa: B004


def _declared(structure: Any) -> Any:
    """Replaces each symbolic tensor or spec; a dict's key is the name, else its own."""
    if isinstance(structure, dict):
        return {key: _one(spec, key) for key, spec in structure.items()}
    if isinstance(structure, (list, tuple)):
        return type(structure)([_declared(spec) for spec in structure])
    return _one(structure, getattr(structure, "name", None))


def _one(spec: Any, name: str | None) -> Declared:
    type_spec = getattr(spec, "type_spec", spec)
    sparse = getattr(spec, "sparse", isinstance(type_spec, tf.SparseTensorSpec))
    dtype = getattr(spec, "dtype", None)
    return Declared(name, None if dtype is None else tf.as_dtype(dtype), sparse)


def _attribute(model: Any, name: str) -> Any:
    # Keras raises for the input of a model that is not built from symbolic tensors.
    try:
        return getattr(model, name, None)
    except (AttributeError, ValueError):
        return None


def _called(model: Any, name: str) -> Any:
    method = getattr(model, name, None)
    return method() if callable(method) else None
