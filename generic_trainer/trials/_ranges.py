"""Ranges of hyperparameters, as scripts write them into an experiment configuration.

::

    import generic_trainer.trials as det

    hyperparameters = {"global_batch_size": det.Constant(32), "units": det.Integer(8, 64)}

Each is the mapping that a YAML file would have, so that configurations can be written as JSON.

Source: `determined.Constant` and the others of Determined 0.12 and 0.13, which have no `count`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["Categorical", "Constant", "Double", "Integer", "Log"]


def Constant(value: Any) -> dict[str, Any]:
    """Always the same value."""
    return {"type": "const", "val": value}


def Integer(minval: int, maxval: int, count: int | None = None) -> dict[str, Any]:
    """A whole number from `minval` to `maxval`, both included.

    Args:
        minval: the lowest.
        maxval: the highest.
        count: points of a grid search; by default all.
    """
    return _range("int", minval, maxval, count)


def Double(minval: float, maxval: float, count: int | None = None) -> dict[str, Any]:
    """A real number from `minval` to `maxval`; `count` are the points that a grid search needs."""
    return _range("double", minval, maxval, count)


def Log(minval: float, maxval: float, base: float = 10, count: int | None = None) -> dict[str, Any]:
    """`base` to the power of a real number from `minval` to `maxval`; `count` as for `Double`."""
    return {**_range("log", minval, maxval, count), "base": base}


def Categorical(vals: Sequence[Any]) -> dict[str, Any]:
    """One of several values."""
    return {"type": "categorical", "vals": list(vals)}


def _range(kind: str, minval: float, maxval: float, count: int | None) -> dict[str, Any]:
    points = {} if count is None else {"count": count}
    return {"type": kind, "minval": minval, "maxval": maxval, **points}
