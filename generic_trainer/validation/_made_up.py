"""Rows that nobody recorded, for the signatures that no real example fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from generic_trainer.validation._parse_spec import ParsedFeature

__all__ = ["examples", "tensor"]

_FREE_DIM = 3  # values along a dimension that a signature leaves free


def tensor(dtype: Any, shape: list[int | None] | None, rows: int) -> np.ndarray:
    """Returns [rows, ...] values of a dtype: small, different from row to row, the same each time.

    Args:
        dtype: a `tf.DType`.
        shape: the signature's dimensions, the batch first; None for an unknown rank.
        rows: the batch.
    """
    if shape == []:
        return np.asarray(_values(dtype, 1)[0])
    dims = [_FREE_DIM if dim is None else dim for dim in (shape or [None])[1:]]
    return _values(dtype, rows * int(np.prod(dims, dtype=int))).reshape([rows, *dims])


def examples(features: Mapping[str, ParsedFeature], schema: Any, rows: int) -> list[bytes]:
    """Returns serialized examples with these features.

    Args:
        features: what the model parses.
        schema: a `Schema` whose domains give the values of strings and integers, or None.
        rows: how many.
    """
    import tensorflow as tf

    choices = _choices(schema) if schema is not None else {}
    made = []
    for row in range(rows):
        example = tf.train.Example()
        for feature in features.values():
            _fill(example.features.feature[feature.name], feature, choices, row)
        made.append(example.SerializeToString(deterministic=True))
    return made


def _fill(into: Any, feature: ParsedFeature, choices: Mapping[str, list[Any]], row: int) -> None:
    options = choices.get(feature.name) or [None]
    choice = options[row % len(options)]
    if feature.dtype == "string":
        into.bytes_list.value.extend([choice or b"text"] * feature.size)
    elif feature.dtype == "int64":
        into.int64_list.value.extend([choice if choice is not None else row % 2] * feature.size)
    else:
        into.float_list.value.extend(0.1 * (row + i % 7) for i in range(feature.size))


def _choices(schema: Any) -> dict[str, list[Any]]:
    """Returns feature → values that the schema's domains allow."""
    domains = {domain.name: list(domain.value) for domain in schema.string_domain}
    found: dict[str, list[Any]] = {}
    for feature in schema.feature:
        words = domains.get(feature.domain, list(feature.string_domain.value))
        if words:
            found[feature.name] = [word.encode() for word in words]
        elif feature.HasField("int_domain"):
            found[feature.name] = [feature.int_domain.min, feature.int_domain.max]
    return found


def _values(dtype: Any, count: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    if dtype.name == "string":
        return np.array([b"text %d" % row for row in range(count)], dtype=object)
    if dtype.is_floating or dtype.is_complex:
        return generator.uniform(0.0, 1.0, count).astype(dtype.as_numpy_dtype)
    return generator.integers(0, 2, count).astype(dtype.as_numpy_dtype)
