"""Python values as JSON, whole, and digests of them that are the same in every process.

JSON alone makes lists of tuples and texts of numbers that are keys, and has no sets and no bytes.
What it cannot hold goes below a tag; a mapping that has the tag as a key of its own goes below one
too, so that nothing which came from outside is ever taken for ours.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import pickle
import re
from collections.abc import Collection, Mapping
from typing import Any

_TAG = "__type__"
_PLAIN = (type(None), bool, int, float, str)
# How Python shows an object that has no better text.
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")
# What pickles of plain data, arrays and random generators name; calling it does nothing else.
_OF_DATA = {
    "_codecs": {"encode"},
    "builtins": {"bytearray", "complex", "frozenset", "range", "set", "slice"},
    "collections": {"Counter", "OrderedDict", "deque"},
    "datetime": {"date", "datetime", "time", "timedelta", "timezone"},
    "random": {"Random"},
    "ml_dtypes": {"bfloat16"},
    "numpy": {"dtype", "ndarray"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy.core.numeric": {"_frombuffer"},
    "numpy.random._mt19937": {"MT19937"},
    "numpy.random._pcg64": {"PCG64", "PCG64DXSM"},
    "numpy.random._philox": {"Philox"},
    "numpy.random._sfc64": {"SFC64"},
    "numpy.random.bit_generator": {"SeedSequence", "__pyx_unpickle_SeedSequence"},
    "numpy.random._pickle": {"__bit_generator_ctor", "__generator_ctor", "__randomstate_ctor"},
}
_SEQUENCES = {"tuple": tuple, "set": set, "frozenset": frozenset}


def to_json(value: Any) -> str:
    """Returns a value as JSON that `from_json` makes an equal value of, of the same types.

    Exact for None, booleans, numbers, texts, bytes, lists, tuples, sets and dicts of these with
    any keys. What is none of these (a proto, an array, an object) is pickled inside.
    """
    return json.dumps(_tagged(value))


def from_json(text: str, *, is_ours: bool) -> Any:
    """Returns the value that `to_json` was given.

    Args:
        text: what it returned.
        is_ours: whether nobody else can have written it. Only then is anything unpickled, which
            can run any code.

    Raises:
        ValueError: it is no such text, or has something pickled inside and may be another's.
    """
    return _untagged(json.loads(text), is_ours)


def unpickled_data(content: bytes, code: Collection[str] = ()) -> Any:
    """Returns what was pickled, without running what a pickle by somebody else may ask for.

    Args:
        content: a pickle of numbers, texts, arrays, random generators and containers of them.
        code: modules, already imported, whose classes it may have objects of.

    Raises:
        ValueError: it names anything else, or is no pickle.
    """
    try:
        return _DataUnpickler(content, code).load()
    except (
        *(ArithmeticError, AttributeError, EOFError, ImportError, LookupError),
        *(pickle.PickleError, RecursionError, TypeError),
    ) as error:
        raise ValueError(f"it is no pickle of data: {error}") from error


class _DataUnpickler(pickle.Unpickler):
    """Finds classes that are data, and those that are defined in some modules."""

    def __init__(self, content: bytes, code: Collection[str]) -> None:
        super().__init__(io.BytesIO(content))
        self._code = code

    def find_class(self, module: str, name: str) -> Any:
        if name in _OF_DATA.get(module, ()):
            return super().find_class(module, name)
        if module in self._code:
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:  # and not imported there
                return found
        raise ValueError(f"it holds {module}.{name}, which is no data and may do anything")


def digest(value: Any, digits: int = 16) -> str:
    """Returns the start of a SHA-256 over a value, in hex, the same in every process.

    It is that of the value as JSON. What JSON does not know counts by its `str`, sets whatever
    their order, and what would show its address there by its class and its attributes.
    """
    try:
        text = json.dumps(value, sort_keys=True, default=_canonical)
    except TypeError:  # keys that have no order, or are no texts
        text = json.dumps(_with_text_keys(value), sort_keys=True, default=_canonical)
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def _tagged(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [_tagged(item) for item in value]
    if kind is dict:
        if _TAG not in value and all(type(key) is str for key in value):
            return {key: _tagged(item) for key, item in value.items()}
        items = [[_tagged(key), _tagged(item)] for key, item in value.items()]
        return {_TAG: "dict", "value": items}
    if kind in _SEQUENCES.values():
        return {_TAG: kind.__name__, "value": [_tagged(item) for item in value]}
    if kind is bytes:
        return {_TAG: "bytes", "value": base64.b64encode(value).decode()}
    return {_TAG: "pickle", "value": base64.b64encode(pickle.dumps(value)).decode()}


def _untagged(value: Any, is_ours: bool) -> Any:
    if isinstance(value, list):
        return [_untagged(item, is_ours) for item in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: _untagged(item, is_ours) for key, item in value.items()}
    kind, held = value[_TAG], value["value"]
    if kind == "dict":
        return {_untagged(key, is_ours): _untagged(item, is_ours) for key, item in held}
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_untagged(item, is_ours) for item in held)
    if kind == "bytes":
        return base64.b64decode(held)
    if not is_ours:
        raise ValueError("an object is pickled inside a text that somebody else may have written")
    return pickle.loads(base64.b64decode(held))


def _canonical(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return {"set": sorted(digest(item) for item in value)}
    text = str(value)
    if not _ADDRESS.search(text):
        return text
    if hasattr(value, "__qualname__"):  # a function
        return f"{value.__module__}.{value.__qualname__}"
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    try:
        return {name: digest(value.__reduce_ex__(2)[1:3])}
    except TypeError:  # a lock, a file: nothing to tell it from others of its class
        return name


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        items = sorted((digest(key), _with_text_keys(item)) for key, item in value.items())
        return {"items": items}
    if isinstance(value, (list, tuple)):
        return [_with_text_keys(item) for item in value]
    return value
