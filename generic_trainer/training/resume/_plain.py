"""Plain state as files: numbers, strings, arrays, and lists, tuples and dicts of them.

`<name>.json` holds the structure, `<name>.npz` its arrays. Reading them never runs code. Other
objects can be kept as pickles, which are read as data only.
"""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
from collections.abc import Collection
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.files import read_whole, write_whole
from generic_trainer._core.values import unpickled_data
from generic_trainer.training.resume._taken import Writer

# Of an object of a class derived from these, JSON would keep a part.
_SCALARS = {type(None), bool, int, float, str}
_EXACT = (*_SCALARS, list, tuple, dict, np.ndarray)


class NotPlain(Exception):
    """A value is something else than plain data."""


def write_state(
    directory: str, name: str, value: Any, *, code: Collection[str] | None = None
) -> None:
    """Writes a value into two files.

    Args:
        directory: local or remote.
        name: of the files, without their endings.
        value: plain data.
        code: modules whose classes it may have objects of; None takes plain data alone.

    Raises:
        NotPlain: it has something else.
        ValueError: it has objects of other classes than those of `code` and of data.
    """
    taken_state(name, value, code=code)(directory)


def taken_state(name: str, value: Any, *, code: Collection[str] | None = None) -> Writer:
    """Returns a writer of a value as it is now; see `write_state`."""
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(encoded(value, arrays, code))
    arrays = {key: np.array(array) for key, array in arrays.items()}  # others may change them

    def write(directory: str) -> None:
        write_arrays(os.path.join(directory, f"{name}.npz"), arrays)
        write_whole(os.path.join(directory, f"{name}.json"), text)

    return write


def is_plain(value: Any) -> bool:
    """Returns whether a value is plain data."""
    try:
        encoded(value, {})
    except NotPlain:
        return False
    return True


def read_state(directory: str, name: str, *, code: Collection[str] = ()) -> Any:
    """Returns what `write_state` was given.

    Raises:
        ValueError: it has objects of other classes than those of `code` and of data.
    """
    value = json.loads(read_whole(os.path.join(directory, f"{name}.json")))
    return decoded(value, read_arrays(os.path.join(directory, f"{name}.npz")), code)


def write_arrays(path: str, arrays: dict[str, np.ndarray]) -> None:
    """Writes arrays by their names."""
    buffer = io.BytesIO()  # NumPy seeks, which remote files do not
    np.savez(buffer, **arrays)
    write_whole(path, buffer.getvalue())


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """Returns what `write_arrays` was given."""
    return dict(np.load(io.BytesIO(read_whole(path))))


def encoded(value: Any, arrays: dict[str, np.ndarray], code: Collection[str] | None = None) -> Any:
    """Returns a value for JSON, and adds its arrays to `arrays`; see `write_state`."""
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):  # some logs of Keras 3 are
        value = value.numpy()
    if code is not None and type(value) not in _EXACT and not isinstance(value, np.generic):
        return _pickled(value, code)
    if value is None or (
        isinstance(value, (bool, int, float, str)) and not isinstance(value, np.generic)
    ):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and _is_saved_by_numpy(value.dtype):
        name = f"array_{len(arrays)}"
        arrays[name] = np.asarray(value)
        return {"array": name, "scalar": isinstance(value, np.generic)}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        if {*map(type, value)} <= _SCALARS:  # in one go: Python's random state has 625 numbers
            return {kind: [*value]}
        return {kind: [encoded(each, arrays, code) for each in value]}
    if isinstance(value, dict):
        pairs = value.items()
        return {"dict": [[encoded(k, arrays, code), encoded(v, arrays, code)] for k, v in pairs]}
    if code is None:
        raise NotPlain
    return _pickled(value, code)


def decoded(value: Any, arrays: dict[str, np.ndarray], code: Collection[str] = ()) -> Any:
    """Returns what `encoded` was given."""
    if not isinstance(value, dict):
        return value
    if "array" in value:
        array = arrays[value["array"]]
        return array[()] if value["scalar"] else array
    if "dict" in value:
        return {decoded(k, arrays, code): decoded(v, arrays, code) for k, v in value["dict"]}
    if "pickle" in value:
        return unpickled_data(base64.b64decode(value["pickle"]), code)
    (kind,) = value
    items = [decoded(each, arrays, code) for each in value[kind]]
    return tuple(items) if kind == "tuple" else items


def _pickled(value: Any, code: Collection[str]) -> dict[str, str]:
    try:
        content = pickle.dumps(value)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise ValueError(f"it holds a {type(value).__name__}: {error}") from error
    unpickled_data(content, code)  # what could not be read back is not worth keeping
    return {"pickle": base64.b64encode(content).decode()}


def _is_saved_by_numpy(dtype: np.dtype) -> bool:
    """Whether a file of NumPy keeps arrays of a type: not objects, nor types of others."""
    # Not `isbuiltin`, which is false for the type of an array that another process has pickled.
    formats = np.lib.format
    return not dtype.hasobject and formats.descr_to_dtype(formats.dtype_to_descr(dtype)) == dtype
