"""JSON and YAML that people write, read within limits; values and errors shown in one line.

A text can have two values under one key, or be deeper than Python's stack. Reading it raises an
error then, so that later code does not have to check.
"""

import difflib
import functools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

_MAX_DEPTH = 64
_MAX_YAML_VALUES = 100_000  # far more than people write by hand
# YAML 1.2 has floats without a point, 1e-4, which PyYAML, a reader of 1.1, takes for strings.
_FLOAT_1_2 = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_MERGE = "tag:yaml.org,2002:merge"
_SHOWN_CHARACTERS = 60
# Lines that TensorFlow puts around the message of an error.
_WRAPPING = ("Graph execution error", "Detected at node", "Original stack", 'File "', "<", "Node:")
_NODE = re.compile(r"^\{\{.*?\}\} | \[Op:.*$|\.$")


def parse_json(text: str) -> Any:
    """Returns the value of a JSON text.

    Raises:
        ValueError: it is not JSON, has a key twice, is nested too deeply, or contains half a
            character; the message names the position.
    """
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {_MAX_DEPTH} levels") from None
    _check_values(value)
    return value


def parse_json_object(text: str) -> dict[str, Any] | None:
    """Returns the object that a JSON text holds; None for `null`.

    Raises:
        ValueError: it holds something else, or `parse_json` cannot read it.
    """
    values = parse_json(text)
    if values is not None and not isinstance(values, dict):
        raise ValueError(f"it holds {describe(values)}")
    return values


def parse_yaml(text: str) -> Any:
    """Returns the value of a YAML text, with floats as in YAML 1.2, and dates as strings.

    Raises:
        ValueError: it is not YAML, has a key twice, contains itself, or is larger or deeper than
            people write by hand.
    """
    try:
        value = _yaml_loader()(text).get_single_data()
    except RecursionError:
        raise ValueError(f"it is nested deeper than {_MAX_DEPTH} levels") from None
    except Exception as error:  # any class, for `!!bool x` and `!!timestamp x`
        raise ValueError(f"{type(error).__name__}: {error}") from error
    _check_values(value, _MAX_YAML_VALUES)
    return value


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Returns " (did you mean 'x'?)" with the known name that is nearest, or "" if none is near."""
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def shown(value: object) -> str:
    """Returns the `repr` of a value for a message, cut if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."


def describe(value: object) -> str:
    """Returns a value, as `shown` does, and its type."""
    return f"{shown(value)} of type {type(value).__name__}"


def is_number(value: object) -> bool:
    """Whether a value is a number that a float can hold; not a boolean, NaN or infinity."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the largest float
        return False


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
        raise ValueError(f"an object has more than one value for {shown(twice)}")
    return values


def _check_values(value: Any, most: float = math.inf) -> None:
    """Raises `ValueError` for values that are nested too deeply, or contain half a character.

    Args:
        value: that of a text; YAML's aliases of aliases can make it billions of values.
        most: how many values there may be.
    """
    levels, count = [(value, 0)], 0
    while levels:
        part, level = levels.pop()
        count += 1
        if level == _MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {_MAX_DEPTH} levels")
        if count > most:
            raise ValueError(f"it has more than {most:,} values")
        if isinstance(part, str):
            part.encode()  # a surrogate without its other half: a ValueError that says where
        elif isinstance(part, dict):
            levels += [(each, level + 1) for each in (*part, *part.values())]
        elif isinstance(part, (list, tuple, set)):
            levels += [(each, level + 1) for each in part]


@functools.cache
def _yaml_loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """PyYAML's safe loader: floats as in YAML 1.2, no dates, no key twice."""

        def flatten_mapping(self, node: Any) -> None:  # called before a mapping is read or merged
            if not hasattr(node, "is_flat"):  # merged keys may be there twice
                node.is_flat = True
                keys = [k for k, _ in node.value if isinstance(k, yaml.ScalarNode)]
                counts = Counter((key.tag, key.value) for key in keys if key.tag != _MERGE)
                if twice := [key for key in keys if counts[key.tag, key.value] > 1]:
                    key = twice[1]
                    raise ValueError(f"the key {key.value!r} is there twice{key.start_mark}")
            super().flatten_mapping(node)

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT_1_2, list("-+0123456789."))
    return Loader


def reason_of(error: BaseException) -> str:
    """Returns type and message of an error in one line, without TensorFlow's stack and nodes."""
    lines = (_NODE.sub("", line.strip()) for line in str(error).splitlines())
    own = [line for line in lines if line and not line.startswith(_WRAPPING)]
    return f"{type(error).__name__}: {own[0][:500]}" if own else type(error).__name__
