"""Hyperparameters: constants, ranges, and how values are drawn from them."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from generic_trainer.errors import ConfigurationError, raise_problems

__all__ = [
    "Categorical",
    "Constant",
    "Double",
    "Hyperparameter",
    "Integer",
    "Log",
    "grid",
    "parse_hyperparameters",
    "sample",
]


@dataclasses.dataclass(frozen=True)
class Constant:
    """Always the same value."""

    val: Any

    def draw(self, _: random.Random) -> Any:
        """Returns the value."""
        return self.val

    def points(self) -> list[Any]:
        """Returns the one point of a grid."""
        return [self.val]


@dataclasses.dataclass(frozen=True)
class Categorical:
    """One of several values."""

    vals: Sequence[Any]

    def draw(self, source: random.Random) -> Any:
        """Draws uniformly."""
        return source.choice(list(self.vals))

    def points(self) -> list[Any]:
        """Returns all values."""
        return list(self.vals)


@dataclasses.dataclass(frozen=True)
class Integer:
    """A whole number from `minval` to `maxval`, both included."""

    minval: int
    maxval: int
    count: int | None = None

    def draw(self, source: random.Random) -> int:
        """Draws uniformly."""
        return source.randint(self.minval, self.maxval)

    def points(self) -> list[int]:
        """Returns `count` numbers, evenly spread; all of them if there are not more."""
        return sorted({round(point) for point in _spread(self, self.minval, self.maxval)})


@dataclasses.dataclass(frozen=True)
class Double:
    """A real number between `minval` and `maxval`."""

    minval: float
    maxval: float
    count: int | None = None

    def draw(self, source: random.Random) -> float:
        """Draws uniformly."""
        return source.uniform(self.minval, self.maxval)

    def points(self) -> list[float]:
        """Returns `count` numbers, evenly spread."""
        return _spread(self, self.minval, self.maxval)


@dataclasses.dataclass(frozen=True)
class Log:
    """`base` to the power of a real number between `minval` and `maxval`."""

    minval: float
    maxval: float
    base: float = 10.0
    count: int | None = None

    def draw(self, source: random.Random) -> float:
        """Draws the exponent uniformly."""
        return float(self.base ** source.uniform(self.minval, self.maxval))

    def points(self) -> list[float]:
        """Returns `count` numbers, their exponents evenly spread."""
        return [float(self.base**point) for point in _spread(self, self.minval, self.maxval)]


Hyperparameter = Constant | Categorical | Integer | Double | Log

_KINDS: dict[str, type[Hyperparameter]] = {
    "const": Constant,
    "categorical": Categorical,
    "int": Integer,
    "double": Double,
    "log": Log,
}


def parse_hyperparameters(values: Mapping[str, Any]) -> dict[str, Hyperparameter]:
    """Reads the section `hyperparameters` of an experiment configuration.

    A mapping with a `type` is a range, any other value stands for itself.

    Raises:
        ConfigurationError: with everything that is wrong.
    """
    found: dict[str, Hyperparameter] = {}
    problems = []
    for name, value in values.items():
        try:
            found[name] = _parse(value)
        except ConfigurationError as error:
            problems.append(f"{name}: {error}")
    raise_problems(ConfigurationError, "hyperparameters", problems)
    return found


def sample(ranges: Mapping[str, Hyperparameter], seed: int) -> dict[str, Any]:
    """Draws one value for each; the same seed draws the same values."""
    source = random.Random(seed)
    return {name: ranges[name].draw(source) for name in sorted(ranges)}


def grid(ranges: Mapping[str, Hyperparameter]) -> Iterator[dict[str, Any]]:
    """Yields every combination of the ranges' points, the last name varying fastest."""
    names = sorted(ranges)
    for values in itertools.product(*(ranges[name].points() for name in names)):
        yield dict(zip(names, values, strict=True))


def _parse(value: Any) -> Hyperparameter:
    if not (isinstance(value, Mapping) and "type" in value):
        return Constant(value)
    arguments = {key: item for key, item in value.items() if key != "type"}
    kind = _KINDS.get(value["type"])
    if kind is None:
        raise ConfigurationError(f"type must be one of {', '.join(_KINDS)}, got {value['type']!r}")
    try:
        made = kind(**arguments)
    except TypeError:
        fields = ", ".join(field.name for field in dataclasses.fields(kind))
        raise ConfigurationError(
            f"a hyperparameter of type {value['type']} takes {fields}; got {sorted(arguments)}"
        ) from None
    _check(made)
    return made


def _check(made: Hyperparameter) -> None:
    if isinstance(made, Categorical) and not made.vals:
        raise ConfigurationError("vals must not be empty")
    if isinstance(made, (Integer, Double, Log)) and not made.minval <= made.maxval:
        raise ConfigurationError(f"minval {made.minval} is above maxval {made.maxval}")


def _spread(range_: Integer | Double | Log, lowest: float, highest: float) -> list[Any]:
    count = range_.count
    if count is None and isinstance(range_, Integer):
        count = range_.maxval - range_.minval + 1
    if count is None or count < 1:
        raise ConfigurationError(f"a grid search needs `count`, the number of points, for {range_}")
    if isinstance(range_, Integer):
        count = min(count, range_.maxval - range_.minval + 1)
    if count == 1:
        return [(lowest + highest) / 2]
    step = (highest - lowest) / (count - 1)
    return [lowest + step * index for index in range(count)]
