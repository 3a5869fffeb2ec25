"""Texts: JSON and YAML that people write, read within limits; values and errors, shown in a line.

A text of a few hundred bytes can stand for gigabytes (YAML aliases of aliases), for a structure
deeper than Python's stack, or for two values under one key. All of it is refused while it is read,
so that nobody who is given the value meets it later.
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

# Far more than anybody writes by hand, and what PyYAML reads in some seconds.
_MAX_YAML_CHARACTERS = 4 << 20
_MAX_YAML_VALUES = 100_000
_MAX_DEPTH = 64
# YAML 1.2 has floats without a point, 1e-4, which PyYAML, a reader of 1.1, takes for texts.
_FLOAT_1_2 = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_MERGE = "tag:yaml.org,2002:merge"
_SHOWN_CHARACTERS = 60
# What TensorFlow puts around the message of an error, and before it.
_WRAPPING = ("Graph execution error", "Detected at node", "Original stack", 'File "', "<", "Node:")
_NODE = re.compile(r"^\{\{.*?\}\} ")


def parse_json(text: str) -> Any:
    """Returns the value of a JSON text.

    Raises:
        ValueError: it is no JSON, has a key twice, is nested too deep, or holds half a character;
            the message says where.
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
        ValueError: it holds something else, or is none of what `parse_json` reads.
    """
    values = parse_json(text)
    if values is not None and not isinstance(values, dict):
        raise ValueError(f"it holds {describe(values)}")
    return values


def parse_yaml(text: str) -> Any:
    """Returns the value of a YAML text, with floats as YAML 1.2 has them, and dates as texts.

    Aliases (`*name`) stand for what they repeat, as long as all of it together stays small.

    Raises:
        ValueError: it is no YAML, has a key twice, repeats itself without end, or is larger or
            deeper than anybody writes by hand; the message says where.
    """
    import yaml

    if len(text) > _MAX_YAML_CHARACTERS:
        raise ValueError(
            f"it has {len(text):,} characters; expected at most {_MAX_YAML_CHARACTERS:,}"
        )
    try:
        value = yaml.load(text, _yaml_loader())
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    _check_values(value)
    return value


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Returns " (did you mean 'x'?)" with the known name that is nearest, or "" if none is near."""
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def shown(value: object) -> str:
    """Returns the `repr` of a value for a message, cut short where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."


def describe(value: object) -> str:
    """Returns a value, as `shown` does, and its type."""
    return f"{shown(value)} of type {type(value).__name__}"


def is_number(value: object) -> bool:
    """Whether a value is a number that a float can hold; booleans, NaN and infinity are none."""
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


def _check_values(value: Any) -> None:
    """Raises `ValueError` for what is nested too deep, and for texts that no file could hold."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        parts: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                parts += each
                parts += each.values()
            elif isinstance(each, (list, tuple, set)):
                parts += each
            elif isinstance(each, str):
                each.encode()  # a surrogate without its other half: a ValueError that says where
        if not parts:
            return
        level = parts
    raise ValueError(f"it is nested deeper than {_MAX_DEPTH} levels")


@functools.cache
def _yaml_loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """PyYAML's safe loader, with limits."""

        def __init__(self, stream: Any) -> None:
            super().__init__(stream)
            self._depth = 0
            # Of each node that is complete, by its identity: values with all aliases written out.
            self._sizes: dict[int, int] = {}

        def compose_node(self, parent: Any, index: Any) -> Any:
            mark = self.peek_event().start_mark
            is_alias = self.check_event(yaml.AliasEvent)
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                raise _refused(f"it is nested deeper than {_MAX_DEPTH} levels", mark)
            node = super().compose_node(parent, index)
            self._depth -= 1
            if not is_alias:
                self._sizes[id(node)] = 1 + sum(self._sizes[id(part)] for part in _parts(node))
            elif id(node) not in self._sizes:
                raise _refused("an alias stands inside of what it repeats", mark)
            if max(self._sizes[id(node)], len(self._sizes)) > _MAX_YAML_VALUES:
                raise _refused(f"it comes to more than {_MAX_YAML_VALUES:,} values", mark)
            return node

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            seen = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                    if (key.tag, key.value) in seen:
                        raise _refused(f"the key {key.value!r} is there twice", key.start_mark)
                    seen.add((key.tag, key.value))
            return node

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep)
            except yaml.YAMLError:
                raise
            except Exception as error:  # `!!int x`, `!!timestamp x`: whatever PyYAML stumbles over
                problem = f"{shown(node.value)} is no {node.tag}"
                raise _refused(problem, node.start_mark) from error

    def _refused(problem: str, mark: Any) -> Exception:
        error: Exception = yaml.composer.ComposerError(None, None, problem, mark)
        return error

    def _parts(node: Any) -> Iterable[Any]:
        if isinstance(node, yaml.MappingNode):
            return (part for pair in node.value for part in pair)
        return node.value if isinstance(node, yaml.SequenceNode) else ()

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT_1_2, list("-+0123456789."))
    return Loader


def reason_of(error: Exception) -> str:
    """Returns what an error is and says, in a line, without the stack and nodes of TensorFlow."""
    lines = (_NODE.sub("", line.strip()) for line in str(error).splitlines())
    own = [line for line in lines if line and not line.startswith(_WRAPPING)]
    return f"{type(error).__name__}: {own[0][:500]}" if own else type(error).__name__
