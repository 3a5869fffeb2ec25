"""Rows that a signature is called with: real examples where they fit, made-up ones elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from generic_trainer.validation._model import RECORDS, ModelUnderTest
from generic_trainer.validation._schema_rows import DTYPE_OF_LIST, LISTS, domain_of, parsed
from generic_trainer.validation._scoring import Feed
from generic_trainer.validation._signatures import (
    ParsedFeature,
    batched,
    dtype_of,
    feature_of,
    is_dense,
    is_serialized,
    parsed_features,
    shape_of,
)

_REAL = "the contract's examples"
_MADE_UP = "made-up examples"
_FREE_DIM = 3  # values along a dimension that a signature leaves free


def feed_for(
    model: ModelUnderTest, signature: Any, records: list[bytes] | None = None
) -> Feed | None:
    """Returns rows for a signature, None for inputs that cannot be made up.

    Args:
        model: the model.
        signature: a `SignatureDef`.
        records: examples to take the rows from, of a signature without a graph; None for the
            first of the contract's, and the features that the model's graph parses from them.
    """
    infos = dict(signature.inputs)
    if not infos or not all(is_dense(info) for info in infos.values()):
        return None
    serialized = is_serialized(signature) and records is None
    name = next(iter(infos))
    whole = frozenset(key for key, info in infos.items() if not batched(info))
    shapes = filter(None, (shape_of(infos[key]) for key in infos if key in whole))
    rows = next((shape[0] for shape in shapes), None) or RECORDS
    features = parsed_features(model.meta_graph.graph_def, signature) if serialized else {}
    # Transform's output is not an input of a graph that transforms by itself.
    if records is None:
        records = [] if model.contract.examples_transformed else model.records
    if whole:  # exactly so many
        records = list(itertools.islice(itertools.cycle(records), rows))
    if features:
        is_real = bool(records)
        records = records or _made_up_examples(features.values(), model.schema, rows)
        inputs = {name: np.array(records, dtype=object)}
        return Feed(inputs, _REAL if is_real else _MADE_UP, is_real, True, whole, tuple(records))
    columns = _columns(records, infos)
    if columns is not None:
        return Feed(columns, f"features of {_REAL}", True, False, whole, tuple(records))
    if not serialized and (features := input_features(model, signature)):
        made_up = _made_up_examples(features.values(), model.schema, rows)
        if (columns := _columns(made_up, infos)) is not None:
            return Feed(columns, f"features of {_MADE_UP}", False, False, whole, tuple(made_up))
    if serialized:  # any text
        texts = records or [b"text %d" % row for row in range(rows)]
        return Feed({name: np.array(texts, dtype=object)}, "strings", False, False, whole)
    tensors = {name: _made_up_tensor(info) for name, info in infos.items()}
    return Feed(tensors, "made-up tensors", False, False, whole)


def inputs_of(signature: Any, feed: Feed, examples: Sequence[Any]) -> dict[str, np.ndarray] | None:
    """Returns the inputs of a signature for `tf.train.Example`s, made as those of its feed were.

    Returns:
        Input name → array [examples, ...]; None if the examples do not fit.
    """
    records = [example.SerializeToString(deterministic=True) for example in examples]
    if feed.serialized:
        return dict.fromkeys(feed.inputs, np.array(records, dtype=object))
    return _columns(records, dict(signature.inputs))


def input_features(model: ModelUnderTest, signature: Any) -> dict[str, ParsedFeature]:
    """Returns the inputs of a signature as features, if schema or statistics have them all.

    It returns none if the contract's examples are transformed: the signature may take transformed
    features under the same names.
    """
    if model.contract.examples_transformed:
        return {}
    known = {name: feature.dtype for name, feature in model.observed.items()}
    known |= (model.feature_dtypes or {}) if model.schema is not None else {}
    features = {}
    for key, info in signature.inputs.items():
        name = feature_of(key, known)
        dims = (shape_of(info) or [None])[1:]
        size = int(np.prod([_FREE_DIM if dim is None else dim for dim in dims], dtype=int))
        feature = ParsedFeature(name, DTYPE_OF_LIST[_kind_of(dtype_of(info))], size)
        if known.get(name) not in ("", feature.dtype):
            return {}
        features[name] = feature
    return features


def _columns(records: list[bytes], infos: dict[str, Any]) -> dict[str, np.ndarray] | None:
    """Returns the inputs as columns of the records, None if they do not fit."""
    rows = [example.features.feature for example in parsed(records)]
    try:
        columns = {name: _column(rows, name, info) for name, info in infos.items()}
    except (KeyError, ValueError, IndexError):
        return None
    return columns if rows else None


def _column(rows: list[Any], name: str, info: Any) -> np.ndarray:
    key = name if any(name in row for row in rows) else name.removesuffix("_input")
    if not all(key in row for row in rows):  # reading would add it
        raise KeyError(key)
    kind = _kind_of(dtype_of(info))
    if any(row[key].WhichOneof("kind") != kind for row in rows):
        raise ValueError(f"{key} is not a {kind} in every row")
    dims = (shape_of(info) or [None])[1:]
    values = [list(getattr(row[key], kind).value) for row in rows]
    array = np.array(values, dtype=object if kind == "bytes_list" else None)
    return array.reshape([len(rows), *(-1 if dim is None else dim for dim in dims)]).astype(
        dtype_of(info).as_numpy_dtype
    )


def _kind_of(dtype: Any) -> str:
    """Returns the list of a `tf.train.Feature` that holds values of a dtype."""
    if dtype.name == "string":
        return "bytes_list"
    return "float_list" if dtype.is_floating else "int64_list"


def _made_up_tensor(info: Any) -> np.ndarray:
    """Returns [RECORDS, ...] small values, different from row to row, the same each time.

    A first dimension that is not free gives the number of rows.
    """
    dtype, shape = dtype_of(info), shape_of(info)
    if shape == []:
        return np.array(_values(dtype, 1)[0], dtype=object if dtype.name == "string" else None)
    rows, *others = shape or [None]
    dims = [
        RECORDS if rows is None else rows,
        *(_FREE_DIM if dim is None else dim for dim in others),
    ]
    return _values(dtype, int(np.prod(dims, dtype=int))).reshape(dims)


def _values(dtype: Any, count: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    if dtype.name == "string":
        return np.array([b"text %d" % row for row in range(count)], dtype=object)
    if dtype.is_floating or dtype.is_complex:
        return generator.uniform(0.0, 1.0, count).astype(dtype.as_numpy_dtype)
    return generator.integers(0, 2, count).astype(dtype.as_numpy_dtype)


def _made_up_examples(features: Iterable[ParsedFeature], schema: Any, rows: int) -> list[bytes]:
    """Returns serialized examples, whose values are from the schema's domains where it has some."""
    import tensorflow as tf

    declared = {} if schema is None else {feature.name: feature for feature in schema.feature}
    examples = [tf.train.Example() for _ in range(rows)]
    for feature in features:
        known = declared.get(feature.name)
        domain = [] if known is None else domain_of(schema, known, feature.dtype)
        for row, example in enumerate(examples):
            into = getattr(example.features.feature[feature.name], LISTS[feature.dtype])
            into.value[:] = _made_up_values(feature, domain, row)
    return [example.SerializeToString(deterministic=True) for example in examples]


def _made_up_values(feature: ParsedFeature, domain: list[Any], row: int) -> list[Any]:
    if feature.dtype == "float32" and domain:
        share = (row % RECORDS) / RECORDS
        return [domain[0] + share * (domain[-1] - domain[0])] * feature.size
    if feature.dtype == "float32":
        return [0.1 * (row + i % 7) for i in range(feature.size)]
    choices = domain or [b"text" if feature.dtype == "string" else row % 2]
    choice = choices[row % len(choices)]
    return [int(choice) if feature.dtype == "int64" else choice] * feature.size
