"""Calls of a model's signatures, as an object and in a session; comparison of outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

ODD_ROWS = 7  # an incomplete last batch, of a size that no graph is built for by accident
_SINGLE_ROWS = 4  # rows that are also scored alone

# Relative tolerance per dtype: sums are taken in another order at another batch size.
_TOLERANCE = {2: 2e-2, 4: 1e-3, 8: 1e-6}
_FEW = 0.05  # share of discrete values that may flip where two scores are nearly equal

Outputs = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Feed:
    """Rows for the inputs of one signature.

    Attributes:
        inputs: input name → array [rows, ...].
        source: of the rows, in words.
        real: whether the contract named them.
        serialized: whether the only input is a vector of serialized examples.
        whole: inputs whose first dimension is not free, or that have none: each call gets all of
            their values.
        records: the serialized examples that the rows are, none where tensors were made up.
    """

    inputs: dict[str, np.ndarray]
    source: str
    real: bool
    serialized: bool
    whole: frozenset[str] = frozenset()
    records: tuple[bytes, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows there are."""
        counts = [len(rows) for name, rows in self.inputs.items() if name not in self.whole]
        counts += [len(rows) for rows in self.inputs.values() if np.ndim(rows)]
        return next(iter(counts), 1)

    @property
    def divisible(self) -> bool:
        """Whether fewer rows than all can be fed."""
        return not self.whole.issuperset(self.inputs)

    @property
    def bytes_per_row(self) -> float:
        """The average size of a row."""
        arrays = self.inputs.values()
        texts = sum(len(text) for array in arrays if array.dtype == object for text in array.flat)
        return (texts + sum(array.nbytes for array in arrays)) / max(self.rows, 1)

    def take(self, rows: Sequence[int] | slice) -> dict[str, np.ndarray]:
        """Returns some of the rows, as far as an input has a free number of them."""
        return {n: value if n in self.whole else value[rows] for n, value in self.inputs.items()}

    def part(self, rows: Sequence[int]) -> Feed:
        """Returns the feed with some of its rows."""
        records = tuple(self.records[row] for row in rows) if self.records else ()
        return dataclasses.replace(self, inputs=self.take(rows), records=records)


@dataclasses.dataclass(frozen=True)
class Scores:
    """Outputs of one signature.

    Attributes:
        feed: its inputs.
        batch: its outputs for all rows at once.
        again: the same, in a second call.
        odd: for the first `ODD_ROWS` rows; the whole batch if it cannot be divided.
        single: for each of the first rows alone; none if the batch cannot be divided.
    """

    feed: Feed
    batch: Outputs
    again: Outputs
    odd: Outputs
    single: tuple[Outputs, ...]

    def varies(self, output: str) -> tuple[str, bool]:
        """Returns the difference of an output between the two calls; see `difference`."""
        return difference(self.again[output], self.batch[output])


def score(signature: Any, feed: Feed) -> Scores:
    """Calls a loaded signature with all rows (twice), an odd remainder of them, and single rows."""
    batch = call(signature, feed.inputs)
    again = call(signature, feed.inputs)
    if not feed.divisible:
        return Scores(feed, batch, again, batch, ())
    odd = call(signature, feed.take(slice(0, ODD_ROWS)))
    singles = range(min(_SINGLE_ROWS, feed.rows))
    alone = tuple(call(signature, feed.take([row])) for row in singles)
    return Scores(feed, batch, again, odd, alone)


def call(signature: Any, inputs: Mapping[str, np.ndarray]) -> Outputs:
    """Calls a loaded signature; ragged and sparse outputs are made dense."""
    import tensorflow as tf

    specs = signature.structured_input_signature[1]
    tensors = {
        name: tf.constant(value, dtype=specs[name].dtype if name in specs else None)
        for name, value in inputs.items()
    }
    return {name: _dense(value) for name, value in signature(**tensors).items()}


def open_session(directory: str) -> Any:
    """Returns a graph session with a model, as BulkInferrer, TF Serving and C++ servers load it.

    Raises:
        Exception: a consumer would end with it.
    """
    import tensorflow as tf

    softly = tf.compat.v1.ConfigProto(allow_soft_placement=True)  # as TF Serving does
    # It takes longer than it saves in the one call, and the object has been called with it.
    softly.graph_options.rewrite_options.disable_meta_optimizer = True
    running = tf.compat.v1.Session(graph=tf.Graph(), config=softly)
    tf.compat.v1.saved_model.load(running, ["serve"], directory)
    return running


class SessionSignature:
    """A signature of a model in a session, which is called as one of a loaded model is.

    It is for models that only a session can load, such as graphs of TensorFlow 1 that return
    reference variables.

    Args:
        running: the session.
        signature: the `SignatureDef`.
    """

    captured_inputs = ()

    def __init__(self, running: Any, signature: Any) -> None:
        import tensorflow as tf

        self._running, self._signature = running, signature
        specs = {
            key: tf.TensorSpec(info.tensor_shape, info.dtype)
            for key, info in signature.inputs.items()
        }
        self.structured_input_signature = ((), specs)

    def __call__(self, **inputs: Any) -> Outputs:
        arrays = {key: tensor.numpy() for key, tensor in inputs.items()}
        return run_signature(self._running, self._signature, arrays)


def run_signature(running: Any, signature: Any, inputs: Mapping[str, np.ndarray]) -> Outputs:
    """Returns the dense outputs that a session gives for a `SignatureDef`."""
    fetched = {
        key: info.name
        for key, info in signature.outputs.items()
        if info.WhichOneof("encoding") == "name" and info.name
    }
    fed = {signature.inputs[key].name: value for key, value in inputs.items()}
    return {key: np.asarray(value) for key, value in running.run(fetched, fed).items()}


def is_float(array: np.ndarray) -> bool:
    """Whether the array has floating point numbers, bfloat16 included."""
    return array.dtype.kind in "fc" or array.dtype.name in ("bfloat16", "float8_e4m3fn")


def difference(actual: np.ndarray, expected: np.ndarray) -> tuple[str, bool]:
    """Compares two arrays of the same meaning.

    Returns:
        The difference, in words, empty for none; and whether it is certain.
    """
    if actual.shape != expected.shape:
        # Rows that are padded to the longest of their batch rightly differ in this way.
        padded = actual.ndim == expected.ndim and actual.shape[:1] == expected.shape[:1]
        return f"shape {actual.shape} instead of {expected.shape}", not padded
    if not is_float(actual):
        return _discrete_difference(actual, expected)
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    scale = float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0))
    tolerance = _TOLERANCE.get(actual.dtype.itemsize, 2e-2)
    close = np.isclose(a, b, rtol=tolerance, atol=tolerance * min(scale, 1.0), equal_nan=True)
    if close.all():
        return "", False
    worst = int(np.argmax(np.where(close, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf))))
    return f"{a.flat[worst]:.6g} instead of {b.flat[worst]:.6g}", True


def _discrete_difference(actual: np.ndarray, expected: np.ndarray) -> tuple[str, bool]:
    different = np.asarray(actual != expected)
    share = float(different.mean()) if different.size else 0.0
    if not share:
        return "", False
    first = int(np.argmax(different))
    return f"{actual.flat[first]!r} instead of {expected.flat[first]!r}", share > _FEW


def _dense(value: Any) -> np.ndarray:
    import tensorflow as tf

    if isinstance(value, tf.RaggedTensor):
        value = value.to_tensor()
    elif isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value)
    array = value.numpy() if hasattr(value, "numpy") else value
    # A string without dimensions comes as Python's own bytes.
    return np.array(array, dtype=object) if isinstance(array, bytes) else np.asarray(array)
