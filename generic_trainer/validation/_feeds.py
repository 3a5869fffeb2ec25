"""Rows that a signature is called with: real examples where they fit, made-up ones elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from generic_trainer.validation._model import RECORDS, ModelUnderTest
from generic_trainer.validation._schema_rows import (
    domain_limits,
    domain_words,
    dtype_in_schema,
)
from generic_trainer.validation._scoring import Feed
from generic_trainer.validation._signatures import (
    ParsedFeature,
    batched,
    dtype_of,
    is_dense,
    is_serialized,
    parsed_features,
    shape_of,
)

_REAL = "the contract's examples"
_MADE_UP = "made-up examples"
_KINDS = {"bytes_list": "string", "int64_list": "int64", "float_list": "float32"}
_FREE_DIM = 3  # values along a dimension that a signature leaves free


def feed_for(
    model: ModelUnderTest, signature: Any, records: list[bytes] | None = None
) -> Feed | None:
    """Returns rows for a signature, or None when it takes something that cannot be made up.

    Args:
        model: what the rows are for.
        signature: a `SignatureDef`.
        records: examples to take the rows from, of a signature without a graph; None for the
            first of the contract's and what the model's graph parses from them.
    """
    infos = dict(signature.inputs)
    if not infos or not all(is_dense(info) for info in infos.values()):
        return None
    serialized = is_serialized(signature) and records is None
    name = next(iter(infos))
    whole = frozenset(key for key, info in infos.items() if not batched(info))
    rows = _fixed_rows(infos) or RECORDS
    features = parsed_features(model.meta_graph.graph_def, signature) if serialized else {}
    # What Transform wrote is no input of the graph that does the transform itself.
    if records is None:
        records = [] if model.contract.examples_transformed else model.records
    records = _repeated(records, rows, whole)
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
        Input name → array [examples, ...]; None where the examples do not fit.
    """
    records = [example.SerializeToString(deterministic=True) for example in examples]
    if feed.serialized:
        return dict.fromkeys(feed.inputs, np.array(records, dtype=object))
    return _columns(records, dict(signature.inputs))


def input_features(model: ModelUnderTest, signature: Any) -> dict[str, ParsedFeature]:
    """Returns the inputs of a signature as features, where schema or statistics know them all.

    None are where the contract's examples are transformed ones: such a signature may take what
    Transform makes of a feature, under its name.
    """
    if model.contract.examples_transformed:
        return {}
    known = {name: feature.dtype for name, feature in model.observed.items()}
    if model.schema is not None:
        known |= {feature.name: dtype_in_schema(feature) for feature in model.schema.feature}
    features = {}
    for key, info in signature.inputs.items():
        name = key if key in known else key.removesuffix("_input")
        dims = (shape_of(info) or [None])[1:]
        size = int(np.prod([_FREE_DIM if dim is None else dim for dim in dims], dtype=int))
        feature = ParsedFeature(name, _KINDS[_kind_of(dtype_of(info))], size)
        if known.get(name) not in ("", feature.dtype):
            return {}
        features[name] = feature
    return features


def _fixed_rows(infos: Mapping[str, Any]) -> int | None:
    """Returns the number of rows that the inputs fix, or None where they leave it free."""
    shapes = [shape_of(info) for info in infos.values() if not batched(info)]
    return next((shape[0] for shape in shapes if shape), None)


def _repeated(records: list[bytes], rows: int, whole: Collection[str]) -> list[bytes]:
    """Returns the records, or exactly `rows` of them where an input takes no other number."""
    return list(itertools.islice(itertools.cycle(records), rows)) if whole else records


def _columns(records: list[bytes], infos: dict[str, Any]) -> dict[str, np.ndarray] | None:
    """Returns the inputs as columns of the records, or None when they do not fit."""
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
    kind = _kind_of(dtype_of(info))
    if any(row[key].WhichOneof("kind") != kind for row in rows):
        raise ValueError(f"{key} is no {kind} everywhere")
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

    There are as many rows as the first dimension says where it is not free.
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

    choices = _choices(schema) if schema is not None else {}
    examples = []
    for row in range(rows):
        example = tf.train.Example()
        for feature in features:
            _fill(example.features.feature[feature.name], feature, choices, row)
        examples.append(example.SerializeToString(deterministic=True))
    return examples


def _fill(into: Any, feature: ParsedFeature, choices: Mapping[str, list[Any]], row: int) -> None:
    options = choices.get(feature.name) or [None]
    choice = options[row % len(options)]
    if feature.dtype == "string":
        word = choice if isinstance(choice, bytes) else b"text"
        into.bytes_list.value.extend([word] * feature.size)
    elif feature.dtype == "int64":
        number = int(choice) if isinstance(choice, (int, float)) else row % 2
        into.int64_list.value.extend([number] * feature.size)
    elif isinstance(choice, (int, float)):
        share = (row % RECORDS) / RECORDS
        number = options[0] + share * (options[-1] - options[0])
        into.float_list.value.extend([number] * feature.size)
    else:
        into.float_list.value.extend(0.1 * (row + i % 7) for i in range(feature.size))


def _choices(schema: Any) -> dict[str, list[Any]]:
    """Returns feature → values that the schema's domains allow."""
    return {
        feature.name: domain_words(schema, feature) or domain_limits(feature)
        for feature in schema.feature
    }
