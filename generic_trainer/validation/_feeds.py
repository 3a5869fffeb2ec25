"""What a signature is called with: rows of real examples where they fit, made-up ones elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from generic_trainer.validation import _made_up
from generic_trainer.validation._model import RECORDS, ModelUnderTest
from generic_trainer.validation._parse_spec import parsed_features
from generic_trainer.validation._tensors import dtype_of, is_dense, is_serialized, shape_of

__all__ = ["Feed", "feed_for"]

_REAL = "the contract's examples"


@dataclasses.dataclass(frozen=True)
class Feed:
    """Rows for the inputs of one signature.

    Attributes:
        inputs: input name → array [rows, ...].
        source: what the rows are, in words.
        real: whether they are examples that the contract named.
        serialized: whether the only input is a vector of serialized examples.
    """

    inputs: dict[str, np.ndarray]
    source: str
    real: bool
    serialized: bool

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.inputs.values())))

    def take(self, rows: Sequence[int] | slice) -> dict[str, np.ndarray]:
        """Returns some of the rows."""
        return {name: values[rows] for name, values in self.inputs.items()}


def feed_for(model: ModelUnderTest, signature: Any) -> Feed | None:
    """Returns rows for a signature, or None when it takes something that cannot be made up."""
    infos = dict(signature.inputs)
    if not infos or not all(is_dense(info) for info in infos.values()):
        return None
    if is_serialized(signature):
        return _strings(model, signature)
    columns = _columns(model.records, infos)
    if columns is not None:
        return Feed(columns, f"features of {_REAL}", True, False)
    made_up = {
        name: _made_up.tensor(dtype_of(i), shape_of(i), RECORDS) for name, i in infos.items()
    }
    return Feed(made_up, "made-up tensors", False, False)


def _strings(model: ModelUnderTest, signature: Any) -> Feed:
    """Rows for one vector of strings: examples where the graph parses some, else any text."""
    (name,) = signature.inputs
    features = parsed_features(model.meta_graph.graph_def, signature)
    if features and model.records and not model.contract.examples_transformed:
        return Feed({name: _vector(model.records)}, _REAL, True, True)
    if features:
        records = _made_up.examples(features, model.schema, RECORDS)
        return Feed({name: _vector(records)}, "made-up examples", False, True)
    columns = _columns(model.records, dict(signature.inputs))
    if columns is not None:
        return Feed(columns, f"features of {_REAL}", True, False)
    texts = [b"text %d" % row for row in range(RECORDS)]
    return Feed({name: _vector(model.records or texts)}, "strings", False, False)


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
    dims = (shape_of(info) or [None])[1:]
    values = []
    for row in rows:
        if key not in row:
            raise KeyError(key)
        feature = row[key]
        values.append(list(getattr(feature, feature.WhichOneof("kind")).value))
    array = np.array(values, dtype=object if dtype_of(info).name == "string" else None)
    return array.reshape([len(rows), *(-1 if dim is None else dim for dim in dims)]).astype(
        dtype_of(info).as_numpy_dtype
    )


def _vector(records: list[bytes]) -> np.ndarray:
    vector = np.empty(len(records), dtype=object)
    vector[:] = records
    return vector
