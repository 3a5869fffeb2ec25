"""Plain data as bytes and files: numbers, strings, arrays, generators, and containers of them.

They are pickles that are loaded as data only, which never runs code. Checkpoints have such files,
and workers exchange such bytes.
"""

import io
import os
import pickle
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.files import read_whole, write_whole
from generic_trainer._core.values import unpickled_data

# Objects of other packages are refused before pickle asks them for their state: a model of Keras
# would answer with a whole file.
_PACKAGES = {"builtins", "collections", "datetime", "ml_dtypes", "numpy", "random"}
_CONTAINERS = (dict, list, tuple, set)


class _Pickler(pickle.Pickler):
    """Replaces tensors by arrays, and containers of libraries by Python's own."""

    def __init__(self, file: io.BytesIO, code: Collection[str]) -> None:
        super().__init__(file)
        self._code = code

    def reducer_override(self, value: Any) -> Any:
        kind = value if hasattr(value, "__qualname__") else type(value)  # a function or a class
        if kind.__module__.partition(".")[0] in _PACKAGES or kind.__module__ in self._code:
            return NotImplemented
        if isinstance(value, tf.Tensor):  # some logs of Keras 3 are
            return np.asarray(value).__reduce__()
        for container in _CONTAINERS:  # Keras and TensorFlow wrap those that are attributes
            if isinstance(value, container):
                return container, (container(value),)
        raise ValueError(f"it holds {kind.__module__}.{kind.__qualname__}, which is no data")


def pickled(value: Any, code: Collection[str] = ()) -> bytes:
    """Returns a pickle of plain data that `unpickled_data` loads.

    Args:
        value: plain data, and objects of classes in `code`.
        code: names of modules.

    Raises:
        ValueError: it has objects of other classes.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, code).dump(value)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise ValueError(f"it holds a {type(value).__name__}: {error}") from error
    content = buffer.getvalue()
    unpickled_data(content, code)  # what could not be read back is not worth keeping
    return content


def is_plain(value: Any) -> bool:
    """Returns whether a value is plain data."""
    try:
        pickled(value)
    except Exception:  # of an object's own code, or of a container that a thread changes
        return False
    return True


def taken_state(name: str, value: Any) -> Callable[[str], None]:
    """Returns a function that writes a value, as it is now, into a directory.

    Args:
        name: of the file, without its ending.
        value: see `pickled`.

    Raises:
        ValueError: it has objects of other classes than those of data.
    """
    content = pickled(value)
    return lambda directory: write_whole(_path(directory, name), content)


def read_state(directory: str, name: str) -> Any:
    """Returns the value that a function of `taken_state` has written.

    Raises:
        ValueError: it has objects of other classes than those of data.
    """
    return unpickled_data(read_whole(_path(directory, name)))


def _path(directory: str, name: str) -> str:
    return os.path.join(directory, f"{name}.pickle")
