"""NumPy arrays, alone or in lists and dicts, as tensors that Keras trains on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer.trials.errors import CheckFailedError, InvalidDataTypeException

__all__ = ["as_tensors", "records_of", "standardized"]

_PARTS = ("x", "y", "sample_weight")


def as_tensors(data: tuple[Any, ...], loader: str) -> tuple[Any, ...]:
    """Returns (x, y) or (x, y, sample_weight) as tensors [N, ...], floats as Keras has them.

    Args:
        data: what the user's method returned.
        loader: the method, for messages.

    Raises:
        InvalidDataTypeException: they are no arrays, or not two or three.
        CheckFailedError: they differ in N.
    """
    if len(data) not in (2, 3):
        raise InvalidDataTypeException(
            f"{loader}: a tuple must be (x, y) or (x, y, sample_weight), but it has {len(data)} "
            "items"
        )
    for name, part in zip(_PARTS, data, strict=False):
        _check(part, name, loader, may_be_dict=name == "x")
    parts = [part[0] if isinstance(part, list) and len(part) == 1 else part for part in data]
    tensors = tuple(tf.nest.map_structure(_tensor, standardized(part)) for part in parts)
    lengths = {len(tensor) for tensor in tf.nest.flatten(tensors)}
    if len(lengths) > 1:
        raise CheckFailedError(
            f"{loader}: x, y and sample_weight must have as many records each, but have "
            f"{sorted(lengths)}"
        )
    return tensors


def records_of(tensors: tuple[Any, ...]) -> int:
    """Returns how many records there are."""
    return len(tf.nest.flatten(tensors)[0])


def standardized(batch: Any) -> Any:
    """Returns nested arrays, lists as tuples and floats in Keras' type, float32 by default."""
    if isinstance(batch, Mapping):
        return {name: standardized(part) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return tuple(standardized(part) for part in batch)
    if isinstance(batch, tf.Tensor):
        return batch
    array = np.asarray(batch)
    if array.dtype == object:  # of texts; pandas has them so
        return array.astype(str) if array.size and isinstance(array.flat[0], str) else array
    if issubclass(array.dtype.type, np.floating):
        return array.astype(tf.keras.backend.floatx(), copy=False)
    return array


def _check(part: Any, name: str, loader: str, *, may_be_dict: bool) -> None:
    if isinstance(part, Mapping) and may_be_dict:
        leaves = list(part.values())
    else:
        leaves = list(part) if isinstance(part, list) else [part]
    wrong = [type(leaf).__name__ for leaf in leaves if not getattr(leaf, "shape", ())]
    if wrong or not leaves:
        kinds = "an array, a list of arrays" + (" or a dict of arrays" if may_be_dict else "")
        found = type(part).__name__ + (f" of {wrong[0]}" if leaves != [part] and wrong else "")
        raise InvalidDataTypeException(f"{loader}: {name} must be {kinds}, but got {found}")


def _tensor(array: Any) -> tf.Tensor:
    with tf.device("CPU:0"):  # of all data, one batch at a time goes to an accelerator
        return tf.convert_to_tensor(array)
