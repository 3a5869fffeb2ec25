"""Rows that a signature is called with: real examples where they fit, made-up ones elsewhere."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from generic_trainer.validation._evidence import RECORDS
from generic_trainer.validation._lists import LISTS
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._schema_rows import domain_of, parsed
from generic_trainer.validation._scoring import Feed, Inputs
from generic_trainer.validation._signatures import ParsedFeature, Signature, Tensor, feature_of

_REAL = "the contract's examples"
_MADE_UP = "made-up examples"
# Values along a dimension that a signature leaves free: enough for several convolutions without
# padding, whose mean over nothing is any number; the next ones where a model refuses so many.
_FREE_DIMS = (96, 16, 3)
_MAX_VALUES = 1 << 17  # of a row with free dimensions, and of one in a batch of RECORDS
_LEAST_ROWS = 8  # more than the odd number that is scored too
_CHANNELS = 3
_MAX_NAMES = 10  # of features


def feed_for(
    model: ModelUnderTest,
    signature: Signature,
    records: list[bytes] | None = None,
    *,
    free: int = 0,
) -> Feed | None:
    """Returns rows for a signature; None if it takes other than dense tensors of raw features.

    Args:
        model: the model.
        signature: one of its signatures.
        records: examples to take the rows from; None for the first of the contract's, and texts
            for a signature that takes strings and parses no examples. A TFLite model has no graph
            to find that out.
        free: size of the free dimensions of made-up rows; 0 for that of rows that were scored.
    """
    tensors = signature.inputs
    if not tensors:
        return Feed({}, "no inputs")
    if not all(tensor.is_dense for tensor in tensors.values()):
        return None
    if records is None and model.takes_transformed(signature):
        return None
    serialized = signature.is_serialized and (records is None or bool(signature.features))
    parses = serialized and bool(signature.features)
    whole = frozenset(key for key, tensor in tensors.items() if not tensor.is_batched)
    shapes = filter(None, (tensors[key].shape for key in tensors if key in whole))
    free = free or _free_dim(model)
    # Few rows of those that are large, as their activations are.
    values = sum(math.prod(_dims(tensor, free)[1:]) for tensor in tensors.values())
    fitting = min(RECORDS, max(_LEAST_ROWS, RECORDS * _MAX_VALUES // max(values, 1)))
    rows = next((shape[0] for shape in shapes), None) or fitting
    if records is None:
        records = model.evidence.raw_records
    if whole:  # exactly so many
        records = list(itertools.islice(itertools.cycle(records), rows))
    is_free = any(None in (tensor.shape or [])[1:] for tensor in tensors.values())
    chosen = free if is_free else 0
    if inputs := _inputs(signature, records, parses):
        source = _REAL if parses else f"features of {_REAL}"
        return Feed(inputs, source, True, parses, whole, tuple(records))
    named = signature.features if serialized else input_features(model, signature, free)
    made_up = _made_up_examples(named.values(), model.evidence.schema, rows)
    if inputs := _inputs(signature, made_up, parses):
        source = _MADE_UP if parses else f"features of {_MADE_UP}"
        return Feed(inputs, source, False, parses, whole, tuple(made_up), free=chosen)
    if serialized:  # any text
        texts = records or [b"text %d" % row for row in range(rows)]
        inputs = dict.fromkeys(tensors, np.array(texts, dtype=object))
        return Feed(inputs, "strings", whole=whole)
    inputs = {name: _made_up_tensor(tensor, free, fitting) for name, tensor in tensors.items()}
    known = all(tensor.shape is not None for tensor in tensors.values())
    return Feed(inputs, "made-up tensors", whole=whole, ranks_known=known, free=chosen)


def free_dims(signature: Signature) -> list[int]:
    """Returns sizes of free dimensions to try, the best first."""
    tensors = signature.inputs.values()
    fitting = [
        free
        for free in _FREE_DIMS
        if all(math.prod(_dims(tensor, free)[1:]) <= _MAX_VALUES for tensor in tensors)
    ]
    return fitting or [_FREE_DIMS[-1]]


def is_tiny(feed: Feed) -> bool:
    """Whether rows are made up so small that convolutions over them may leave nothing."""
    return 0 < feed.free < _FREE_DIMS[-2]


def _free_dim(model: ModelUnderTest) -> int:
    """Returns the size of free dimensions with which signatures were scored, or else the least."""
    return max((scored.feed.free for scored in model.scores.values()), default=0) or _FREE_DIMS[-1]


def why_unfit(model: ModelUnderTest, signature: Signature) -> str:
    """Returns why the contract's examples are no inputs of a signature; empty if they may be."""
    if signature.parses or not (records := model.evidence.raw_records):
        return ""
    rows = [example.features.feature for example in parsed(records)]
    for name, tensor in signature.inputs.items():
        try:
            _column(rows, name, tensor)
        except ValueError as error:
            return f"input {name!r}, {tensor}: {error}"
    return ""


def inputs_of(signature: Signature, feed: Feed, examples: Sequence[Any]) -> Inputs | None:
    """Returns the inputs of a signature for `tf.train.Example`s, made as those of its feed were.

    Returns:
        Input name → array [examples, ...]; None if the examples do not fit.
    """
    records = [example.SerializeToString(deterministic=True) for example in examples]
    return _inputs(signature, records, feed.serialized)


def input_features(
    model: ModelUnderTest, signature: Signature, free: int = 0
) -> dict[str, ParsedFeature]:
    """Returns the inputs of a signature as features, if schema or statistics have them all.

    It returns none if the contract's examples are transformed: the signature may take transformed
    features under the same names.
    """
    if model.contract.examples_transformed:
        return {}
    known = {name: feature.dtype for name, feature in model.evidence.observed.items()}
    known |= (model.evidence.feature_dtypes or {}) if model.evidence.schema is not None else {}
    features = {}
    free = free or _free_dim(model)
    for key, tensor in signature.inputs.items():
        name = feature_of(key, known)
        size = math.prod(_dims(tensor, free)[1:])
        feature = ParsedFeature(name, tensor.example_dtype, size)
        if known.get(name) not in ("", feature.dtype):
            return {}
        features[name] = feature
    return features


def _inputs(signature: Signature, records: list[bytes], serialized: bool) -> Inputs | None:
    """Returns records as they are, or as columns; None if they do not fit, or there are none."""
    if serialized and records:
        return dict.fromkeys(signature.inputs, np.array(records, dtype=object))
    rows = [example.features.feature for example in parsed(records)]
    try:
        columns = {name: _column(rows, name, tensor) for name, tensor in signature.inputs.items()}
    except (ValueError, IndexError):
        return None
    return columns if rows else None


def _column(rows: list[Any], name: str, tensor: Tensor) -> np.ndarray:
    key = name if any(name in row for row in rows) else name.removesuffix("_input")
    if not all(key in row for row in rows):  # reading would add it
        found = sorted({feature for row in rows for feature in row})
        raise ValueError(f"not every example has this feature, they have {found[:_MAX_NAMES]}")
    kind = LISTS[tensor.example_dtype]
    if any(row[key].WhichOneof("kind") != kind for row in rows):
        raise ValueError(f"the feature {key!r} is not a {kind} in every example")
    dims = [None] if tensor.shape is None else tensor.shape
    if dims:
        dims = [len(rows), *dims[1:]]
    if dims.count(None) > 1:
        raise ValueError("a list of values does not tell the sizes of two free dimensions")
    shape = [-1 if dim is None else dim for dim in dims]
    dtype = object if kind == "bytes_list" else None
    lists = [list(getattr(row[key], kind).value) for row in rows]
    if len(lengths := set(map(len, lists))) > 1:
        counts = f"{min(lengths)} to {max(lengths)} values"
        raise ValueError(f"the examples have lists of different lengths, {counts}")
    array = np.array(lists, dtype)  # of several rows for a scalar, reshape raises a ValueError
    return array.reshape(shape).astype(tensor.dtype.as_numpy_dtype)


def _dims(tensor: Tensor, free: int, rows: int = RECORDS) -> list[int]:
    """Returns the dimensions of made-up rows.

    A first dimension that is not free gives the number of rows.
    """
    shape = [None] if tensor.shape is None else tensor.shape
    sizes = [rows, *[free] * len(shape)]
    if shape == [None] * 4:  # images
        sizes[3] = _CHANNELS
    return [size if dim is None else dim for dim, size in zip(shape, sizes, strict=False)]


def _made_up_tensor(tensor: Tensor, free: int, rows: int) -> np.ndarray:
    """Returns [rows, ...] small values, different from row to row, the same each time."""
    dims = _dims(tensor, free, rows)
    generator = np.random.default_rng(0)
    count = math.prod(dims)
    if tensor.dtype.name == "string":
        texts = [b"text %d" % row for row in range(count)]
        return np.array(texts, dtype=object).reshape(dims)
    is_real = tensor.dtype.is_floating or tensor.dtype.is_complex
    values = generator.uniform(0.0, 1.0, count) if is_real else generator.integers(0, 2, count)
    return values.astype(tensor.dtype.as_numpy_dtype).reshape(dims)


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
