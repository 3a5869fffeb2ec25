"""Metrics as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["numbers_of"]

_NOT_METRICS = ("batch", "size")


def numbers_of(logs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the metrics that Keras gives out as tensors: a float each, or nested lists."""
    return {
        name: _number(value) for name, value in (logs or {}).items() if name not in _NOT_METRICS
    }


def _number(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _number(part) for name, part in value.items()}
    found = np.asarray(value).tolist()
    return float(found) if isinstance(found, (bool, int)) else found
