"""The value that a row has for a feature or an input of a signature."""

from __future__ import annotations

import base64
import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from generic_trainer._core.texts import shown
from generic_trainer.validation._signatures import ParsedFeature, Tensor, fits

_MISSING = "the model needs a value, and there is none"
_ANY_FLOAT = 200.0  # every dtype of floats has smaller numbers
_BOOLEANS = {"true": 1, "false": 0}


def values_of(value: Any, feature: ParsedFeature) -> Iterator[Any]:
    """Yields the values of a feature of an example.

    Raises:
        ValueError: they are missing, or are not of the feature's type.
    """
    if _is_missing(value):
        if feature.is_required:
            raise ValueError(_MISSING)
        return
    for item in value if isinstance(value, list) else [value]:
        yield _item(item, feature.dtype)


def array_of(value: Any, tensor: Tensor) -> np.ndarray:
    """Returns the value of an input in one row, in the dtype and the shape of the input.

    Raises:
        ValueError: it is missing, or does not have them.
    """
    dtype = object if tensor.dtype.name == "string" else tensor.dtype.as_numpy_dtype
    dims = (tensor.shape or [None])[1:]
    if _is_missing(value):
        if not (dtype is object or tensor.dtype.is_floating):
            raise ValueError(_MISSING)
        empty = b"" if dtype is object else math.nan
        return np.full([1 if dim is None else dim for dim in dims], empty, dtype)
    array = np.array(_nested(value, tensor.dtype.name), dtype)
    if dtype is object and any(isinstance(item, list) for item in array.flat):
        raise ValueError(f"expected lists of one length, found {shown(value)}")
    if tensor.shape is None:
        return array
    if array.ndim < 2:  # one value, or the values of a tensor in one list
        with contextlib.suppress(ValueError):
            array = array.reshape([-1 if dim is None else dim for dim in dims])
    if not fits(array.shape, dims):
        raise ValueError(f"expected the shape {dims}, found {list(array.shape)}")
    return array


def _is_missing(value: Any) -> bool:
    """Whether a row has no value."""
    return value is None or value == ""


def _nested(value: Any, dtype: str) -> Any:
    return [_nested(v, dtype) for v in value] if isinstance(value, list) else _item(value, dtype)


def _item(item: Any, dtype: str) -> Any:
    """Returns a value as the dtype has it; text may stand for a number.

    Raises:
        ValueError: the dtype does not have it.
    """
    import tensorflow as tf

    if dtype == "string":
        if isinstance(item, dict) and [*item] == ["b64"]:  # bytes in JSON, as for TF Serving
            return base64.b64decode(item["b64"], validate=True)
        if not isinstance(item, (str, bytes)):
            raise ValueError(f"expected a string, found {shown(item)}")
        return item.encode() if isinstance(item, str) else item
    if dtype == "bool" and isinstance(item, str):
        item = _BOOLEANS.get(item.strip().lower(), item)
    try:
        number = float(item)
    except (TypeError, ValueError):
        raise ValueError(f"expected a number, found {shown(item)}") from None
    kind = tf.as_dtype(dtype)
    if not (kind.is_integer or kind.is_bool):
        if abs(number) > _ANY_FLOAT and math.isfinite(number):
            with np.errstate(over="ignore"):
                if not np.isfinite(kind.as_numpy_dtype(number)):
                    raise ValueError(f"Value out of range for {dtype}: {shown(item)}")
        return number
    if not number.is_integer():
        raise ValueError(f"expected an integer, found {shown(item)}")
    try:
        integer = int(item)
    except ValueError:  # "3.0"
        integer = int(number)
    lowest, highest = (0, 1) if kind.is_bool else (kind.min, kind.max)
    if not lowest <= integer <= highest:
        raise ValueError(f"Value out of range for {dtype}: {shown(item)}")
    return integer
