"""JSON and YAML that people write, read within limits; values and errors shown in one line.

A text of a few hundred bytes can expand to gigabytes (YAML aliases of aliases), to a structure
deeper than Python's stack, or have two values under one key. Reading it raises an error then, so
that later code does not have to check.
"""

from __future__ import annotations

import difflib
import functools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

# Far more than people write by hand; PyYAML reads it in some seconds.
_MAX_YAML_CHARACTERS = 4 << 20
_MAX_YAML_VALUES = 100_000
_MAX_DEPTH = 64
# YAML 1.2 has floats without a point, 1e-4, which PyYAML, a reader of 1.1, takes for strings.
_FLOAT_1_2 = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_MERGE = "tag:yaml.org,2002:merge"
_SHOWN_CHARACTERS = 60
# Lines that TensorFlow puts around the message of an error.
_WRAPPING = ("Graph execution error", "Detected at node", "Original stack", 'File "', "<", "Node:")
_NODE = re.compile(r"^\{\{.*?\}\} ")


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

    Aliases (`*name`) are expanded, as long as the whole value stays small.

    Raises:
        ValueError: it is not YAML, has a key twice, contains itself, or is larger or deeper than
            people write by hand; the message names the position.
    """
    if len(text) > _MAX_YAML_CHARACTERS:
        raise ValueError(
            f"it has {len(text):,} characters; expected at most {_MAX_YAML_CHARACTERS:,}"
        )
    loader = _yaml_loader()(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _number_of_values(node, {})
        value = loader.construct_document(node)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {_MAX_DEPTH} levels") from None
    except Exception as error:  # any class, for `!!bool x` and `!!timestamp x`
        raise ValueError(f"{type(error).__name__}: {error}") from error
    _check_values(value)
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


def _check_values(value: Any, level: int = 0) -> None:
    """Raises `ValueError` for values that are nested too deeply or contain half a character."""
    if level == _MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, str):
        value.encode()  # a surrogate without its other half: a ValueError that says where
    elif isinstance(value, (dict, list, tuple, set)):
        for part in (*value, *value.values()) if isinstance(value, dict) else value:
            _check_values(part, level + 1)


@functools.cache
def _yaml_loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """PyYAML's safe loader, with the floats of YAML 1.2 and without dates."""

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT_1_2, list("-+0123456789."))
    return Loader


def _number_of_values(node: Any, counted: dict[int, int], level: int = 0) -> int:
    """Returns the number of values of a YAML node with all aliases expanded.

    Args:
        node: the node, in which an alias is the node that it repeats.
        counted: identity of each counted node → its number.
        level: the number of nodes around it; an alias inside of what it repeats has no end.

    Raises:
        ValueError: they are too many or nested too deeply, or a mapping has a key twice.
    """
    import yaml

    if level > _MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {_MAX_DEPTH} levels{node.start_mark}")
    if id(node) not in counted:
        parts = [] if isinstance(node, yaml.ScalarNode) else node.value
        if isinstance(node, yaml.MappingNode):
            keys = [key for key, _ in parts if isinstance(key, yaml.ScalarNode)]
            seen = Counter((key.tag, key.value) for key in keys if key.tag != _MERGE)
            if twice := [key for key in keys if seen[key.tag, key.value] > 1]:
                raise ValueError(f"the key {twice[1].value!r} is there twice{twice[1].start_mark}")
            parts = [part for pair in parts for part in pair]
        counted[id(node)] = 1 + sum(_number_of_values(part, counted, level + 1) for part in parts)
    if counted[id(node)] > _MAX_YAML_VALUES:
        raise ValueError(f"it has more than {_MAX_YAML_VALUES:,} values{node.start_mark}")
    return counted[id(node)]


def reason_of(error: Exception) -> str:
    """Returns type and message of an error in one line, without TensorFlow's stack and nodes."""
    lines = (_NODE.sub("", line.strip()) for line in str(error).splitlines())
    own = [line for line in lines if line and not line.startswith(_WRAPPING)]
    return f"{type(error).__name__}: {own[0][:500]}" if own else type(error).__name__
