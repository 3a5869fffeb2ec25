"""Lossless JSON of Python values, and digests that are equal in every process.

JSON converts tuples to lists and numeric keys to strings, and cannot represent sets or bytes. Such
values are stored with a tag. A mapping that has the tag as a key is stored with a tag as well, so
that it is not mistaken for a tagged value.
"""

import base64
import contextlib
import hashlib
import io
import json
import pickle
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

_TAG = "__type__"
_PLAIN = (type(None), bool, int, float, str)
# How Python shows an object without a `__str__`.
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")
# Module → names in pickles of plain data, arrays and random generators. Calling them has no side
# effects.
_OF_DATA = {
    "_codecs": {"encode"},
    "builtins": {
        "bytearray",
        "complex",
        "dict",
        "float",
        "frozenset",
        "int",
        "list",
        "range",
        "set",
        "slice",
        "tuple",
    },
    "collections": {"Counter", "OrderedDict", "defaultdict", "deque"},
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
    """Returns JSON from which `from_json` restores an equal value of the same types.

    None, booleans, numbers, strings, bytes, lists, tuples, sets and dicts of these with any keys
    are stored exactly. Other values (a proto, an array, an object) are embedded as pickles.
    """
    return json.dumps(_tagged(value))


def from_json(text: str, *, is_ours: bool) -> Any:
    """Restores a value from a result of `to_json`.

    Args:
        text: a string that `to_json` returned.
        is_ours: whether only this package can have written the string. Pickles can run any code,
            so they are only loaded in that case.

    Raises:
        ValueError: the string is malformed, or contains a pickle and `is_ours` is false.
    """
    return _untagged(json.loads(text), is_ours)


def unpickled_data(content: bytes, code: Collection[str] = ()) -> Any:
    """Loads a pickle of data safely: it cannot call arbitrary functions.

    Args:
        content: a pickle of numbers, strings, arrays, random generators and containers of them.
        code: names of modules; objects of the classes that they define are accepted as well.

    Raises:
        ValueError: the pickle contains another class or function, or is malformed.
    """
    try:
        return _DataUnpickler(content, code).load()
    except ValueError:
        raise
    except Exception as error:  # pickle may raise any exception, according to its documentation
        raise ValueError(f"it is not a pickle of data: {error}") from error


class _DataUnpickler(pickle.Unpickler):
    """An unpickler that only accepts names of data, and classes that the given modules define."""

    def __init__(self, content: bytes, code: Collection[str]) -> None:
        super().__init__(io.BytesIO(content))
        self._code = code

    def find_class(self, module: str, name: str) -> Any:
        if name in _OF_DATA.get(module, ()):
            return super().find_class(module, name)
        if module in self._code:
            member = super().find_class(module, name)
            if isinstance(member, type) and member.__module__ == module:
                return member
        raise ValueError(f"it holds {module}.{name}, which is no data and may do anything")


def digest(value: Any, digits: int = 16) -> str:
    """Returns the start of the SHA-256 of a value, in hex, which is equal in every process.

    It is computed from the value's JSON. Values that JSON cannot represent are replaced: sets with
    their sorted digests, arrays and tables with dtype, shape and values, objects whose `str`
    contains their address with their class and attributes, and others with their `str`.
    """
    try:
        text = json.dumps(value, sort_keys=True, default=_canonical)
    except TypeError:  # the keys have no order, or are not strings
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
    kind = value[_TAG]
    held = value["value"]
    if kind == "dict":
        return {_untagged(key, is_ours): _untagged(item, is_ours) for key, item in held}
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_untagged(item, is_ours) for item in held)
    if kind == "bytes":
        return base64.b64decode(held)
    if not is_ours:
        raise ValueError("an object is pickled in it, but it may come from an untrusted source")
    return pickle.loads(base64.b64decode(held))


def _canonical(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return {"set": sorted(digest(item) for item in value)}
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if hasattr(type(value), "__array__"):
        with contextlib.suppress(Exception):  # of what has no values, such as a KerasTensor
            return {name: _of_array(value)}
    text = str(value)
    if not _ADDRESS.search(text):
        return text
    if hasattr(value, "__qualname__"):  # a function
        return f"{value.__module__}.{value.__qualname__}"
    try:
        return {name: digest(value.__reduce_ex__(2)[1:3])}
    except TypeError:  # a lock or a file; only its class is part of the digest
        return name


def _of_array(value: Any) -> Any:
    """Returns what the text of an array or table leaves out: its dtype, middle, digits and axes."""
    array = value.__array__()
    held = array.tolist() if array.dtype.hasobject else hashlib.sha256(array.tobytes()).hexdigest()
    axes = [getattr(value, axis, None) for axis in ("index", "columns")]
    named = [[*axis] for axis in axes if isinstance(axis, Iterable)]
    return [str(array.dtype), list(array.shape), held, named]


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        items = sorted((digest(key), _with_text_keys(item)) for key, item in value.items())
        return {"items": items}
    if isinstance(value, (list, tuple)):
        return [_with_text_keys(item) for item in value]
    return value
