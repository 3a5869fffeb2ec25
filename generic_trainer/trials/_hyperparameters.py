"""Hyperparameters: constants, ranges, and the values that are drawn from them.

::

    import generic_trainer.trials as det

    hyperparameters = {"global_batch_size": det.Constant(32), "units": det.Integer(8, 64)}

Each is the mapping that a YAML file would have, so that configurations can be written as JSON.

A mapping without a `type` may have others within it, as in
`{"optimizer": {"name": "adam", "lr": Log(-4, -2)}}`.

Source: `determined.Constant` etc. of Determined 0.12 and 0.13, which take no `count`.
"""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from generic_trainer._core.texts import describe, did_you_mean, is_number
from generic_trainer.errors import ConfigurationError, raise_problems

Hyperparameter = dict[str, Any]

_DEFAULT_BASE = 10
_MOST_POINTS = 1_000_000  # of a grid search: more are a typing error, and would fill the memory

_GROUP = "group"  # the `type` of a mapping in which there are ranges; nobody writes it
_OPTIONAL = {"base", "count"}
_FIELDS = {
    "const": ["val"],
    "categorical": ["vals"],
    "int": ["minval", "maxval", "count"],
    "double": ["minval", "maxval", "count"],
    "log": ["minval", "maxval", "base", "count"],
}


def Constant(value: Any) -> Hyperparameter:
    """Always the same value."""
    return {"type": "const", "val": value}


def Categorical(vals: Sequence[Any]) -> Hyperparameter:
    """One of several values."""
    return {"type": "categorical", "vals": list(vals)}


def Integer(minval: int, maxval: int, count: int | None = None) -> Hyperparameter:
    """A whole number from `minval` to `maxval`, both included.

    Args:
        minval: the lowest.
        maxval: the highest.
        count: points of a grid search; by default all.
    """
    return _range("int", minval, maxval, count)


def Double(minval: float, maxval: float, count: int | None = None) -> Hyperparameter:
    """A real number from `minval` to `maxval`; `count` are the points that a grid search needs."""
    return _range("double", minval, maxval, count)


def Log(
    minval: float, maxval: float, base: float = _DEFAULT_BASE, count: int | None = None
) -> Hyperparameter:
    """`base` to the power of a real number from `minval` to `maxval`; `count` as for `Double`."""
    return {**_range("log", minval, maxval, count), "base": base}


def parse_hyperparameters(values: Mapping[str, Any]) -> dict[str, Hyperparameter]:
    """Reads the section `hyperparameters` of an experiment configuration.

    A mapping with a `type` is a constant or a range, one without is a constant or has some within
    it; any other value is a constant.

    Raises:
        ConfigurationError: with everything that is wrong.
    """
    parsed: dict[str, Hyperparameter] = {}
    problems = []
    if not isinstance(values, Mapping):
        raise ConfigurationError(f"hyperparameters must be a mapping, got {describe(values)}")
    for name, value in values.items():
        if not isinstance(name, str):
            problems.append(f"expected names that are texts, found {describe(name)}")
        else:
            is_range = isinstance(value, Mapping) and "type" in value
            parsed[name], wrong = _parse(value, is_range=is_range)
            problems += [f"{name}{problem}" for problem in wrong]
    raise_problems(ConfigurationError, "hyperparameters", problems)
    return parsed


def sample(hyperparameters: Mapping[str, Hyperparameter], seed: int) -> dict[str, Any]:
    """Draws one value for each; the same seed draws the same values."""
    source = random.Random(seed)
    return _draw_all(hyperparameters, source)


def grid(hyperparameters: Mapping[str, Hyperparameter]) -> Iterator[dict[str, Any]]:
    """Yields every combination of the points of all, the last name varying fastest.

    Raises:
        ConfigurationError: a range of real numbers has no `count`.
    """
    names = sorted(hyperparameters, key=str)
    for values in itertools.product(*(_points(hyperparameters[name]) for name in names)):
        yield dict(zip(names, values, strict=True))


def _parse(value: Any, *, is_range: bool) -> tuple[Hyperparameter, list[str]]:
    """Returns a hyperparameter, and what is wrong with it: the names that lead there, and why."""
    if not is_range:
        return _parse_group(value)
    problem = _problem(value)
    return dict(value), [f": {problem}"] if problem else []


def _parse_group(value: Any) -> tuple[Hyperparameter, list[str]]:
    """Returns a value without a `type`, with the ranges within it, and what is wrong with these.

    Within a mapping of the user's own, `type` may be a name like any other: a range has values or
    limits besides.
    """
    members: dict[str, Hyperparameter] = {}
    problems = []
    for name, member in value.items() if isinstance(value, Mapping) else ():
        kind = member.get("type") if isinstance(member, Mapping) else None
        fields = {*_FIELDS.get(kind, ())} - _OPTIONAL if isinstance(kind, str) else set()
        is_range = bool(fields and fields & member.keys())
        members[name], wrong = _parse(member, is_range=is_range)
        problems += [f".{name}{problem}" for problem in wrong]
    # By identity, as arrays cannot be compared.
    if all(each.get("val", each) is value[name] for name, each in members.items()):
        return Constant(value), problems
    return {"type": _GROUP, "members": members}, problems


def _range(kind: str, minval: float, maxval: float, count: int | None) -> Hyperparameter:
    points = {} if count is None else {"count": count}
    return {"type": kind, "minval": minval, "maxval": maxval, **points}


def _problem(value: Mapping[str, Any]) -> str | None:
    kind = value["type"]
    given = value.keys() - {"type"}
    if not isinstance(kind, str) or kind not in _FIELDS:
        near = did_you_mean(kind, _FIELDS)
        return f"type must be one of {', '.join(_FIELDS)}, got {describe(kind)}{near}"
    if not {*_FIELDS[kind]} - _OPTIONAL <= given <= {*_FIELDS[kind]}:
        expected = ", ".join(_FIELDS[kind])
        return f"a hyperparameter of type {kind} takes {expected}; got {sorted(given, key=str)}"
    if kind == "const":
        return None
    if kind == "categorical":
        is_list = isinstance(value["vals"], Sequence) and not isinstance(value["vals"], str)
        return None if is_list and value["vals"] else "vals must be a list and must not be empty"
    for field in given - {"count"}:
        number = value[field]
        if not is_number(number) or (kind == "int" and number != int(number)):
            what = "a whole number" if kind == "int" else "a number"
            return f"{field} must be {what}, got {describe(number)}"
    count = value.get("count")
    if not (count is None or (isinstance(count, int) and 0 <= count <= _MOST_POINTS)):
        return f"count must be a whole number up to {_MOST_POINTS:,}, got {describe(count)}"
    if not value["minval"] <= value["maxval"]:
        return f"minval {value['minval']} is above maxval {value['maxval']}"
    if kind == "log" and not _has_powers(value):
        return "base to the power of minval or maxval is not a number"
    return None


def _has_powers(value: Mapping[str, Any]) -> bool:
    try:
        return all(is_number(_power(value, value[end])) for end in ("minval", "maxval"))
    except (ArithmeticError, TypeError):  # too large; zero inverted; complex
        return False


def _draw_all(
    hyperparameters: Mapping[str, Hyperparameter], source: random.Random
) -> dict[str, Any]:
    names = sorted(hyperparameters, key=str)
    return {name: _draw(hyperparameters[name], source) for name in names}


def _draw(hyperparameter: Hyperparameter, source: random.Random) -> Any:
    kind = hyperparameter["type"]
    if kind == "const":
        return hyperparameter["val"]
    if kind == "categorical":
        return source.choice(list(hyperparameter["vals"]))
    if kind == _GROUP:
        return _draw_all(hyperparameter["members"], source)
    bounds = hyperparameter["minval"], hyperparameter["maxval"]
    if kind == "int":
        return source.randint(*map(int, bounds))
    drawn = source.uniform(*bounds)
    return drawn if kind == "double" else _power(hyperparameter, drawn)


def _points(hyperparameter: Hyperparameter) -> list[Any]:
    """Returns the points of a grid: `count` numbers, or exponents, evenly spread."""
    kind = hyperparameter["type"]
    if kind == "const":
        return [hyperparameter["val"]]
    if kind == "categorical":
        return list(hyperparameter["vals"])
    if kind == _GROUP:
        return list(grid(hyperparameter["members"]))
    lowest = hyperparameter["minval"]
    highest = hyperparameter["maxval"]
    count = hyperparameter.get("count")
    if kind == "int":
        numbers = int(highest - lowest) + 1
        count = numbers if count is None else min(count, numbers)
    if count is None or not 1 <= count <= _MOST_POINTS:
        raise ConfigurationError(
            "a grid search needs `count`, the number of points from 1 to "
            f"{_MOST_POINTS:,}, for {hyperparameter}"
        )
    step = (highest - lowest) / (count - 1) if count > 1 else 0
    first = lowest if count > 1 else (lowest + highest) / 2
    spread = [first + step * index for index in range(count)]
    if kind == "int":
        return sorted({round(point) for point in spread})
    return spread if kind == "double" else [_power(hyperparameter, point) for point in spread]


def _power(hyperparameter: Mapping[str, Any], exponent: float) -> float:
    return float(hyperparameter.get("base", _DEFAULT_BASE) ** exponent)
