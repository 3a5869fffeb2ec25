"""Calls of a model's signatures, as an object and in a session; comparison of outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from generic_trainer.validation._signatures import Signature

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
        signature: its description.
    """

    captured_inputs = ()

    def __init__(self, running: Any, signature: Signature) -> None:
        import tensorflow as tf

        self._running, self._signature = running, signature
        specs = {n: tf.TensorSpec(each.shape, each.dtype) for n, each in signature.inputs.items()}
        self.structured_input_signature = ((), specs)

    def __call__(self, **inputs: Any) -> Outputs:
        arrays = {key: tensor.numpy() for key, tensor in inputs.items()}
        return run_signature(self._running, self._signature, arrays)


def run_signature(running: Any, signature: Signature, inputs: Mapping[str, np.ndarray]) -> Outputs:
    """Returns the dense outputs that a session gives for a signature."""
    fetched = {
        key: tensor.info.name
        for key, tensor in signature.outputs.items()
        if tensor.info.WhichOneof("encoding") == "name" and tensor.info.name
    }
    fed = {signature.inputs[key].info.name: value for key, value in inputs.items()}
    return {key: np.asarray(value) for key, value in running.run(fetched, fed).items()}


def is_float(array: np.ndarray) -> bool:
    """Whether the array has floating point numbers, bfloat16 included."""
    return array.dtype.kind in "fc" or array.dtype.name in ("bfloat16", "float8_e4m3fn")


def difference(actual: np.ndarray, expected: np.ndarray) -> tuple[str, bool]:
    """Compares two arrays of the same meaning.

    Returns:
        The difference, in words, empty for none; and whether it is certain.
    """
    atol = rtol = 0.0
    if is_float(actual):
        numbers = np.abs(expected.astype(np.float64))
        rtol = _TOLERANCE.get(actual.dtype.itemsize, 2e-2)
        atol = rtol * min(np.max(numbers, initial=0.0, where=np.isfinite(numbers)), 1.0)
    worst, share, _ = deviation(actual, expected, atol, rtol)
    if actual.shape != expected.shape:
        # Rows that are padded to the longest of their batch rightly differ in this way.
        is_padded = actual.ndim == expected.ndim and actual.shape[:1] == expected.shape[:1]
        return worst, not is_padded
    return worst, share > (0.0 if is_float(actual) else _FEW)


def deviation(
    actual: np.ndarray, expected: np.ndarray, atol: float = 0.0, rtol: float = 0.0
) -> tuple[str, float, float]:
    """Compares two arrays, whose numbers may differ by `atol + rtol * abs(expected)`.

    Returns:
        The worst value beyond the tolerance, in words, empty for none; the share of the values
        beyond it; and the largest difference of two numbers.
    """
    if actual.shape != expected.shape:
        return f"shape {actual.shape} instead of {expected.shape}", 1.0, np.inf
    if is_float(actual) and is_float(expected):
        form, a, b = "{:.6g}", actual.astype(np.float64), expected.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        gap = np.where(same, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf))
        excess = gap - atol - rtol * np.nan_to_num(np.abs(b), posinf=0.0)
    else:
        form, a, b = "{}", actual, expected
        gap = excess = np.asarray(a != b, float)
    share = float((excess > 0).mean()) if excess.size else 0.0
    worst = ""
    if share:
        index = int(np.argmax(excess))
        worst = f"{form} instead of {form}".format(a.flat[index], b.flat[index])
        if a.ndim and len(a) > 1:
            worst += f" (row {np.unravel_index(index, a.shape)[0]})"
    return worst, share, float(gap.max(initial=0.0))


def _dense(value: Any) -> np.ndarray:
    import tensorflow as tf

    if isinstance(value, tf.RaggedTensor):
        value = value.to_tensor()
    elif isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value)
    array = value.numpy() if hasattr(value, "numpy") else value
    # A string without dimensions comes as Python's own bytes.
    return np.array(array, dtype=object) if isinstance(array, bytes) else np.asarray(array)
