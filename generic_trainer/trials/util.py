"""Functions that trial files and their tests call as `determined.util`.

Source: `determined.util` of Determined 0.12 and 0.13.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from generic_trainer.trials.errors import CheckFailedError

__all__ = [
    "get_member_func",
    "has_param",
    "is_overridden",
    "json_encode",
    "make_metrics",
    "validate_batch_metrics",
]


def is_overridden(full_method: Any, parent_class: type) -> bool:
    """Whether a method is not the one that `parent_class` defines."""
    return callable(full_method) and full_method.__qualname__.split(".")[0] != parent_class.__name__


def has_param(fn: Callable[..., Any], name: str, pos: int | None = None) -> bool:
    """Whether a function has a parameter of this name, or at this position."""
    names = inspect.getfullargspec(fn).args
    return name in names or (pos is not None and pos < len(names))


def get_member_func(obj: Any, func_name: str) -> Any:
    """Returns the method of an object; None if it has none of this name."""
    member = getattr(obj, func_name, None)
    return member if callable(member) else None


def validate_batch_metrics(batch_metrics: Sequence[Mapping[str, Any]]) -> None:
    """Checks that all batches have the same metrics.

    Raises:
        CheckFailedError: one has others.
    """
    for index, metrics in enumerate(batch_metrics):
        if metrics.keys() != batch_metrics[0].keys():
            raise CheckFailedError(
                f"inconsistent training metrics: index: {index}: expected "
                f"{sorted(batch_metrics[0])}, found {sorted(metrics)}"
            )


def make_metrics(
    num_inputs: int | None, batch_metrics: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns the metrics of batches, and their means; None for what is no number."""
    validate_batch_metrics(batch_metrics)
    averages: dict[str, float | None] = {}
    for name in batch_metrics[0] if batch_metrics else ():
        values = [metrics[name] for metrics in batch_metrics if metrics[name] is not None]
        try:
            averages[name] = float(np.mean(values))
        except (TypeError, ValueError):
            averages[name] = None
    metrics = {"batch_metrics": list(batch_metrics), "avg_metrics": averages}
    return metrics if num_inputs is None else {**metrics, "num_inputs": num_inputs}


def json_encode(obj: Any, indent: str | None = None, sort_keys: bool = False) -> str:
    """Returns JSON, also of NumPy's values, with NaN and infinity as texts."""
    return json.dumps(_plain(obj), indent=indent, sort_keys=sort_keys)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
