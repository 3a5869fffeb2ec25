"""Rows that a signature is called with: real examples where they fit, made-up ones elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from generic_trainer.validation._model import RECORDS, ModelUnderTest
from generic_trainer.validation._scoring import Feed
from generic_trainer.validation._signatures import (
    ParsedFeature,
    dtype_of,
    is_dense,
    is_serialized,
    parsed_features,
    shape_of,
)

_REAL = "the contract's examples"
_FREE_DIM = 3  # values along a dimension that a signature leaves free


def feed_for(model: ModelUnderTest, signature: Any) -> Feed | None:
    """Returns rows for a signature, or None when it takes something that cannot be made up."""
    infos = dict(signature.inputs)
    if not infos or not all(is_dense(info) for info in infos.values()):
        return None
    serialized = is_serialized(signature)
    name = next(iter(infos))
    features = parsed_features(model.meta_graph.graph_def, signature) if serialized else {}
    if features and model.records and not model.contract.examples_transformed:
        return Feed({name: np.array(model.records, dtype=object)}, _REAL, True, True)
    if features:
        records = _made_up_examples(features.values(), model.schema)
        return Feed({name: np.array(records, dtype=object)}, "made-up examples", False, True)
    columns = _columns(model.records, infos)
    if columns is not None:
        return Feed(columns, f"features of {_REAL}", True, False)
    if serialized:  # any text
        texts = model.records or [b"text %d" % row for row in range(RECORDS)]
        return Feed({name: np.array(texts, dtype=object)}, "strings", False, False)
    made_up = {name: _made_up_tensor(info) for name, info in infos.items()}
    return Feed(made_up, "made-up tensors", False, False)


def _columns(records: list[bytes], infos: dict[str, Any]) -> dict[str, np.ndarray] | None:
    """Returns the inputs as columns of the records, or None when a record does not have them."""
    import tensorflow as tf

    rows = [tf.train.Example.FromString(record).features.feature for record in records]
    try:
        columns = {name: _column(rows, name, info) for name, info in infos.items()}
    except (KeyError, ValueError, IndexError):
        return None
    return columns if rows else None


def _column(rows: list[Any], name: str, info: Any) -> np.ndarray:
    key = name if any(name in row for row in rows) else name.removesuffix("_input")
    if not all(key in row for row in rows):  # reading would add it
        raise KeyError(key)
    dims = (shape_of(info) or [None])[1:]
    values = [list(getattr(row[key], row[key].WhichOneof("kind")).value) for row in rows]
    array = np.array(values, dtype=object if dtype_of(info).name == "string" else None)
    return array.reshape([len(rows), *(-1 if dim is None else dim for dim in dims)]).astype(
        dtype_of(info).as_numpy_dtype
    )


def _made_up_tensor(info: Any) -> np.ndarray:
    """Returns [RECORDS, ...] small values, different from row to row, the same each time."""
    dtype, shape = dtype_of(info), shape_of(info)
    if shape == []:
        return np.asarray(_values(dtype, 1)[0])
    dims = [_FREE_DIM if dim is None else dim for dim in (shape or [None])[1:]]
    return _values(dtype, RECORDS * int(np.prod(dims, dtype=int))).reshape([RECORDS, *dims])


def _values(dtype: Any, count: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    if dtype.name == "string":
        return np.array([b"text %d" % row for row in range(count)], dtype=object)
    if dtype.is_floating or dtype.is_complex:
        return generator.uniform(0.0, 1.0, count).astype(dtype.as_numpy_dtype)
    return generator.integers(0, 2, count).astype(dtype.as_numpy_dtype)


def _made_up_examples(features: Iterable[ParsedFeature], schema: Any) -> list[bytes]:
    """Returns serialized examples, whose strings and integers are from the schema's domains."""
    import tensorflow as tf

    choices = _choices(schema) if schema is not None else {}
    examples = []
    for row in range(RECORDS):
        example = tf.train.Example()
        for feature in features:
            _fill(example.features.feature[feature.name], feature, choices, row)
        examples.append(example.SerializeToString(deterministic=True))
    return examples


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
    choices: dict[str, list[Any]] = {}
    for feature in schema.feature:
        words = domains.get(feature.domain, list(feature.string_domain.value))
        if words:
            choices[feature.name] = [word.encode() for word in words]
        elif feature.HasField("int_domain"):
            choices[feature.name] = [feature.int_domain.min, feature.int_domain.max]
    return choices
