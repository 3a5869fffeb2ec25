"""`HParams`: named hyperparameters whose types are those of their first values."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from generic_trainer._core.texts import describe, is_number, parse_json_object
from generic_trainer.errors import ConfigurationError, raise_problems

# name=value, name[index]=value, name=[value,value]; a comma follows, or the end.
_ASSIGNMENT = re.compile(
    r"\s*(?P<name>\w+)\s*(?:\[\s*(?P<index>\d+)\s*\]\s*)?"
    r"=\s*(?P<value>\[[^\]]*\]|[^,\[\]]*)\s*(?:,|$)"
)
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


class HParams:
    """Hyperparameters as attributes.

    ::

        hparams = HParams(rate=0.1, layers=[64, 32])
        hparams.parse("rate=0.01,layers[1]=16").layers  # [64, 16]

    Source: `tf.contrib.training.HParams` of TensorFlow 1.
    """

    def __init__(self, **values: Any) -> None:
        """Takes names and first values; a list must hold values of one type.

        Raises:
            ConfigurationError: a name is taken.
        """
        for name, value in values.items():
            self.add_hparam(name, value)

    def add_hparam(self, name: str, value: Any) -> None:
        """Adds a hyperparameter.

        Raises:
            ConfigurationError: the name is taken.
        """
        if hasattr(self, name):
            raise ConfigurationError(f"HParams: the name {name!r} is taken")
        setattr(self, name, value)

    def set_hparam(self, name: str, value: Any) -> None:
        """Changes a hyperparameter; the value is converted to the type that it has.

        Raises:
            ConfigurationError: there is none of this name, or the value does not fit.
        """
        self.override_from_dict({name: value})

    def del_hparam(self, name: str) -> None:
        """Removes a hyperparameter."""
        self._known(name)
        delattr(self, name)

    def parse(self, text: str) -> HParams:
        """Changes hyperparameters by a string such as "rate=0.1,layers=[64,32]"; returns itself.

        "layers[1]=16" changes one value of a list.

        Raises:
            ConfigurationError: the string cannot be read, or names or values do not fit; then
                nothing is changed.
        """
        values: dict[str, Any] = {}
        position = 0
        while position < len(text):
            match = _ASSIGNMENT.match(text, position)
            if match is None:
                raise ConfigurationError(
                    f"HParams: expected name=value or name=[value,...] at {text[position:]!r}"
                )
            position = match.end()
            name = match["name"]
            items = values.get(name, self.get(name))
            value = _literal(match["value"], items)
            if match["index"] is not None:
                index = int(match["index"])
                if not isinstance(items, (list, tuple)) or index >= len(items):
                    raise ConfigurationError(
                        f"HParams: {name}[{index}] is none of the values of {name}: {items!r}"
                    )
                value = [*items[:index], value, *items[index + 1 :]]
            values[name] = value
        return self.override_from_dict(values)

    def parse_json(self, text: str) -> HParams:
        """Changes hyperparameters by a JSON object; returns itself.

        Raises:
            ConfigurationError: it is not one, or names or values do not fit.
        """
        try:
            values = parse_json_object(text)
        except ValueError as error:
            raise ConfigurationError(f"HParams: expected JSON, got {text!r}: {error}") from error
        return self.override_from_dict(values or {})

    def override_from_dict(self, values: Mapping[str, Any]) -> HParams:
        """Changes several hyperparameters, all or none; returns itself.

        Raises:
            ConfigurationError: with every name and value that does not fit.
        """
        problems = []
        converted = {}
        for name, value in values.items():
            try:
                converted[name] = _converted(name, value, self._known(name))
            except ConfigurationError as error:
                problems.append(str(error))
        raise_problems(ConfigurationError, "HParams", problems)
        vars(self).update(converted)
        return self

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a value, or the default where there is none of this name."""
        return vars(self).get(name, default)

    def values(self) -> dict[str, Any]:
        """Returns name → value."""
        return {**vars(self)}

    def to_json(self, **options: Any) -> str:
        """Returns a JSON object; `options` are those of `json.dumps`."""
        return json.dumps(self.values(), **options)

    def __contains__(self, name: object) -> bool:
        return name in vars(self)

    def __repr__(self) -> str:
        return f"HParams({', '.join(f'{name}={value!r}' for name, value in self.values().items())})"

    def _known(self, name: str) -> Any:
        if name not in self:
            raise ConfigurationError(
                f"unknown hyperparameter {name!r}; known are {sorted(vars(self))}"
            )
        return vars(self)[name]


def _literal(text: str, like: Any) -> Any:
    text = text.strip()
    if text.startswith("["):
        return [_literal(item, like) for item in text[1:-1].split(",") if item.strip()]
    if isinstance(like[0] if isinstance(like, (list, tuple)) and like else like, str):
        return text  # "1.10" is no number
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: if it is nested
        return text


def _converted(name: str, value: Any, like: Any) -> Any:
    """Returns a value in the type of the one before; a list by the type of its elements."""
    if isinstance(like, (list, tuple)):
        values = value if isinstance(value, (list, tuple)) else [value]
        return [_converted(name, item, like[0]) if like else item for item in values]
    if like is None or (isinstance(value, type(like)) and not isinstance(value, bool)):
        return value
    if isinstance(like, bool) and str(value).lower() in _TRUTH:
        return _TRUTH[str(value).lower()]
    if isinstance(like, float) and is_number(value):
        return float(value)
    if isinstance(like, str) and not isinstance(value, (list, tuple, dict)):
        return str(value)
    raise ConfigurationError(f"{name} is a {type(like).__name__}, which {describe(value)} is not")
