"""The state of Keras callbacks: whatever they hold that is plain data."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core import internals
from generic_trainer._core.files import gfile

_STATE_FILE = "callbacks.json"
_ARRAYS_FILE = "callbacks.npz"
# What `fit` sets, and sets again in the run that resumes.
_SET_BY_FIT = {"model", "_model", "params", "validation_data"}


class _NotPlain(Exception):
    """A value is something else than plain data."""


def write_state(directory: str, callbacks: Sequence[Any]) -> None:
    """Writes what callbacks hold of numbers, texts and arrays, and lists and dicts of them.

    Others (open files, models, functions) are made anew by the run that resumes.
    """
    arrays: dict[str, np.ndarray] = {}
    states = [[type(each).__name__, _state(each, arrays)] for each in callbacks]
    buffer = io.BytesIO()  # NumPy seeks, which remote files do not
    np.savez(buffer, **arrays)
    with gfile().GFile(os.path.join(directory, _ARRAYS_FILE), "wb") as file:
        file.write(buffer.getvalue())
    with gfile().GFile(os.path.join(directory, _STATE_FILE), "w") as file:
        file.write(json.dumps(states))


def read_state(directory: str, callbacks: Sequence[Any]) -> None:
    """Gives callbacks the attributes that `write_state` found on them.

    Raises:
        ValueError: they are not the callbacks that were written.
    """
    with gfile().GFile(os.path.join(directory, _STATE_FILE)) as file:
        states = json.loads(file.read())
    expected, actual = [name for name, _ in states], [type(each).__name__ for each in callbacks]
    if expected != actual:
        raise ValueError(f"it was saved with the callbacks {expected}, and now there are {actual}")
    with gfile().GFile(os.path.join(directory, _ARRAYS_FILE), "rb") as file:
        arrays = dict(np.load(io.BytesIO(file.read())))
    for callback, (_, state) in zip(callbacks, states, strict=True):
        if getattr(callback, "monitor_op", True) is None and state.get("best") is not None:
            # Keras 3 does so at the end of the first epoch, and forgets the best value then.
            internals.KERAS_3_SET_MONITOR_OP.of(callback)()
        for name, value in state.items():
            setattr(callback, name, _decoded(value, arrays))


def _state(callback: Any, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    state = {}
    for name, value in vars(callback).items():
        if name not in _SET_BY_FIT:
            try:
                state[name] = _encoded(value, arrays)
            except _NotPlain:
                continue
    return state


def _encoded(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):  # some logs of Keras 3 are
        value = value.numpy()
    if value is None or (
        isinstance(value, (bool, int, float, str)) and not isinstance(value, np.generic)
    ):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
        name = f"array_{len(arrays)}"
        arrays[name] = np.asarray(value)
        return {"array": name, "scalar": isinstance(value, np.generic)}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_encoded(each, arrays) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[_encoded(k, arrays), _encoded(v, arrays)] for k, v in value.items()]}
    raise _NotPlain


def _decoded(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if not isinstance(value, dict):
        return value
    if "array" in value:
        array = arrays[value["array"]]
        return array[()] if value["scalar"] else array
    if "dict" in value:
        return {_decoded(k, arrays): _decoded(v, arrays) for k, v in value["dict"]}
    (kind,) = value
    decoded = [_decoded(each, arrays) for each in value[kind]]
    return tuple(decoded) if kind == "tuple" else decoded
