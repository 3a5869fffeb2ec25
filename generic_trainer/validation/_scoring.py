"""Calls of a model's signatures, and differences of their outputs.

Three rows in `row_independence`, of a model that divides each score by the sum of its batch::

    raw scores                1       1       2
    one batch of three        0.25    0.25    0.5
    each row alone            1.0     1.0     1.0     1.0 instead of 0.25: a failure
    the first 7 (here all)    0.25    0.25    0.5     no difference: the batch is the same

An honest model differs too, by rounding, and by padding: a row alone may come as `[1, 2]`, and in
the batch, beside a longer row, as `[3, 5]`. So numbers have a tolerance, and shapes are compared in
the part that they share. A wide tolerance hides a model that returns row 2 for row 1, if scores
are close: 0.50001, 0.50002, 0.50003 all differ by less than 0.001. Hence `difference` takes the
batch, and lets numbers differ by a tenth of its spread, unless that is below rounding.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

ODD_ROWS = 7  # an incomplete last batch, of a size that no graph is built for by accident
_SINGLE_ROWS = 4  # rows that are also scored alone
# Relative tolerance by bytes of a float: sums are taken in another order at another batch size.
_TOLERANCE = {2: 2e-2, 4: 1e-3, 8: 1e-6}
_STEP = 2.0**-22  # relative, of whole numbers that were computed in float32
_SINGLE, DOUBLE = 4, 8  # bytes
_FEW = 0.05  # share of discrete values that may flip where two scores are nearly equal
# Relative difference of rows that half precision may round away, and how much of the difference
# between rows their order may change.
_HALF_STEP = 2e-3
_MIXED = 0.25
# What rounding leaves of numbers around 1 that cancel out, with room.
_ROUNDED = 1e-5
_FAR = 10  # times the usual size of a column
Inputs = Mapping[str, np.ndarray]
Outputs = dict[str, np.ndarray]
Kind = Literal["error", "NaN", "infinite"]


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
        ranks_known: whether the signature declares how many dimensions each input has.
        free: size that was made up for further dimensions that are free; 0 if there are none.
    """

    inputs: Inputs
    source: str
    real: bool = False
    serialized: bool = False
    whole: frozenset[str] = frozenset()
    records: tuple[bytes, ...] = ()
    ranks_known: bool = True
    free: int = 0

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
    def is_coherent(self) -> bool:
        """Whether the inputs fit together; made-up row lengths, for example, would not.

        Integers of rank 0 or 1, beside other inputs, may be the lengths, splits or shape of those.
        A made-up input of unknown rank may be a vector where the model multiplies with a matrix.
        """
        if self.records:
            return True
        if not self.ranks_known:
            return False
        if len(self.inputs) < 2:
            return True
        return not any(
            array.dtype.kind in "iu" and array.ndim < 2 for array in self.inputs.values()
        )

    @property
    def bytes_per_row(self) -> float:
        """The average size of a row."""
        arrays = self.inputs.values()
        texts = sum(len(text) for array in arrays if array.dtype == object for text in array.flat)
        return (texts + sum(array.nbytes for array in arrays)) / max(self.rows, 1)

    def take(self, rows: Sequence[int] | slice) -> Inputs:
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
        precision: output → bytes of the floats that it is computed from, where they are fewer than
            those of its dtype, or of half precision.
        shuffled: the outputs for all rows in another order, put back into the order of `batch`;
            empty unless an output is of half precision.
    """

    feed: Feed
    batch: Outputs
    again: Outputs
    odd: Outputs
    single: tuple[Outputs, ...]
    precision: Mapping[str, int] = dataclasses.field(default_factory=dict)
    shuffled: Outputs = dataclasses.field(default_factory=dict)

    def has_rows(self, output: str) -> bool:
        """Returns whether an output has one row for each of the feed's."""
        return self.batch[output].shape[:1] == (self.feed.rows,)

    def varies(self, output: str) -> tuple[str, bool]:
        """Returns the difference of an output between the two calls; see `difference`."""
        return self.compared(output, self.again[output], self.batch[output])

    def compared(
        self, output: str, actual: np.ndarray, expected: np.ndarray, batch: Any = None
    ) -> tuple[str, bool]:
        """Returns the difference of two values of an output, of its precision; see `difference`."""
        return difference(actual, expected, batch, self.precision.get(output, DOUBLE))

    def apart(self, output: str, rows: np.ndarray | None = None) -> tuple[float, float]:
        """Returns what share of rows (default: the second call) is how far from the first call."""
        return deviation(self.again[output] if rows is None else rows, self.batch[output])[1:]

    def is_beyond_noise(self, output: str, rows: np.ndarray) -> bool:
        """Whether rows are several times further from the first call's than the second's are."""
        far, near = self.apart(output, rows), self.apart(output)
        return any(one > 3 * other for one, other in zip(far, near, strict=True))

    def differs(self, output: str, rows: np.ndarray, expected: np.ndarray) -> tuple[str, bool]:
        """Returns the difference of rows from those in the batch; see `difference`."""
        batch = self.batch[output]
        found = self.compared(output, rows, expected, batch)
        if found[0] or self.precision.get(output, DOUBLE) < _SINGLE:
            return found
        return _in_a_column(rows, expected, batch), False

    def mixes_rows(self, output: str) -> bool:
        """Whether rows of half precision have the outputs of other rows.

        What half precision rounds away can be larger than the differences between rows, so that a
        row alone does not show it. In a batch of the same size rows are rounded alike: many that
        change with the order of the rows are mixed up.
        """
        if output not in self.shuffled or not is_float(self.batch[output]):
            return False
        arrays = (outputs[output].astype(np.float64) for outputs in (self.batch, self.shuffled))
        finite = (np.nan_to_num(array, posinf=0.0, neginf=0.0) for array in arrays)
        rows, moved = (array.reshape(self.feed.rows, -1) for array in finite)
        spread = np.abs(rows - rows.mean(axis=0)).mean(axis=0)
        differ = spread > _HALF_STEP * np.abs(rows).max(axis=0, initial=0.0)
        changed = np.abs(moved - rows).mean(axis=0)
        return bool(changed[differ].sum() > _MIXED * spread[differ].sum())


def score(signature: Any, feed: Feed, precision: Mapping[str, int]) -> Scores:
    """Calls a loaded signature with all rows (twice), an odd remainder of them, and single rows.

    Rows with outputs of half precision are called in another order too.
    """
    batch = call(signature, feed.inputs)
    again = call(signature, feed.inputs)
    halves = {k: v.itemsize for k, v in batch.items() if is_float(v) and v.itemsize < _SINGLE}
    precision = {**precision, **halves}
    if not feed.divisible:
        return Scores(feed, batch, again, batch, (), precision)
    odd = call(signature, feed.take(slice(0, ODD_ROWS)))
    alone = tuple(call(signature, feed.take([n])) for n in range(min(_SINGLE_ROWS, feed.rows)))
    shuffled: Outputs = {}
    if any(size < _SINGLE for size in precision.values()):
        order = np.random.default_rng(0).permutation(feed.rows)  # the same in every run
        back = np.argsort(order)
        outputs = call(signature, feed.take(order))
        shuffled = {
            k: v[back]
            for k, v in outputs.items()
            if v.shape == batch[k].shape and v.shape[:1] == (feed.rows,)
        }
    return Scores(feed, batch, again, odd, alone, precision, shuffled)


def call(signature: Any, inputs: Inputs) -> Outputs:
    """Calls a loaded signature; ragged and sparse outputs are made dense."""
    import tensorflow as tf

    dtypes = {n: spec.dtype for n, spec in signature.structured_input_signature[1].items()}
    tensors = {name: tf.constant(value, dtypes.get(name)) for name, value in inputs.items()}
    return {name: dense(value) for name, value in signature(**tensors).items()}


def is_float(array: np.ndarray) -> bool:
    """Whether the array has floating point numbers, bfloat16 included."""
    return array.dtype.kind in "fc" or array.dtype.name in ("bfloat16", "float8_e4m3fn")


def _numbers(array: np.ndarray) -> np.ndarray:
    """Returns floats with 64 bits for each number: bfloat16 can neither be formatted nor viewed."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _sizes(array: np.ndarray) -> np.ndarray:
    """Returns the absolute values of floats, 0 for those that are not finite."""
    return np.nan_to_num(np.abs(_numbers(array)), posinf=0.0)


def _usual_sizes(batch: np.ndarray) -> np.ndarray:
    """Returns the median of the absolute values of each column, without 0; 0 if there are none.

    The largest would be that of a single row, by which all others were judged.
    """
    sizes = _sizes(batch)
    return np.nan_to_num(_at(np.where(sizes > 0, sizes, np.nan), 0.5))


def _at(columns: np.ndarray, share: float) -> np.ndarray:
    """Returns the number that a share of each column is below, NaN aside."""
    ordered = np.sort(columns, axis=0)  # NaN at the end
    last = np.maximum(np.isfinite(ordered).sum(axis=0) - 1, 0)
    return np.take_along_axis(ordered, (last * share).astype(int)[np.newaxis], axis=0)[0]


def extent(array: np.ndarray) -> tuple[float, float]:
    """Returns the least and the greatest of real numbers, NaN aside; NaN if there are no others."""
    numbers = array.astype(np.float64)  # bfloat16 cannot be formatted
    least, greatest = (
        float(extreme.reduce(numbers, axis=None, initial=np.nan)) for extreme in (np.fmin, np.fmax)
    )
    return least, greatest


def difference(
    actual: np.ndarray, expected: np.ndarray, batch: Any = None, precision: int = DOUBLE
) -> tuple[str, bool]:
    """Compares two arrays of the same meaning.

    Args:
        actual: the array to judge.
        expected: the values that it should have.
        batch: rows, perhaps almost alike, none of which must be taken for another; None if it is
            enough that values are almost equal.
        precision: bytes of the floats that the values were computed from, if fewer than their own.

    Returns:
        The difference, in words, empty for none; and whether it is certain. Arrays whose shapes
        differ as padding does are compared in the part that both have.
    """
    atol: Any = 0.0
    rtol = 0.0
    if is_float(actual):
        size = min(precision, actual.real.itemsize)
        rtol = allowed = _TOLERANCE.get(size, 2e-2)
        largest = _sizes(expected).max(initial=0.0)
        atol = rtol * min(largest, 1.0)
        if batch is not None and largest and size >= _SINGLE:
            spread = np.ptp(_numbers(batch[np.isfinite(batch)]).view(np.float64))
            # Of rows that are all alike the spread is rounding itself.
            strict = max(spread / 10, allowed / 100 * largest), 0.0
            atol, rtol = min(
                strict, (atol, rtol), key=lambda tolerance: tolerance[0] + tolerance[1] * largest
            )
        has_columns = np.ndim(batch) and len(batch) and actual.shape[1:] == batch.shape[1:]
        if has_columns and actual.shape == expected.shape:
            # Where a row is almost 0, larger numbers may have cancelled out, as in other rows.
            atol = np.maximum(atol, allowed / 100 * _usual_sizes(batch))
    elif precision == _SINGLE and actual.dtype.kind in "iu" and actual.shape == expected.shape:
        gap = np.abs(actual.astype(np.float64) - expected)
        expected = np.where(gap <= _STEP * np.abs(actual.astype(np.float64)), actual, expected)
    most = 0.0 if is_float(actual) else _FEW
    worst, share, _ = deviation(actual, expected, atol, rtol)
    if actual.shape == expected.shape:
        return worst, share > most
    if actual.ndim != expected.ndim or actual.shape[:1] != expected.shape[:1]:
        return worst, True
    # Rows that are padded to the longest of their batch rightly differ in their shape.
    parts = (deviation(*part, atol, rtol) for part in _common_parts(actual, expected))
    changed, share, _ = min(parts, key=lambda part: part[1])
    return (f"{worst}, and {changed}", True) if share > most else (worst, False)


def _in_a_column(actual: np.ndarray, expected: np.ndarray, batch: np.ndarray) -> str:
    """Returns the difference of a column whose numbers are much smaller than those beside it.

    In `[seconds since 1970, probability]` a tolerance for all numbers hides every probability. It
    is a warning: how large the numbers were that a column was computed from, nobody knows.
    """
    is_real = batch.size and batch.dtype.kind == "f" and batch.itemsize >= _SINGLE
    if not is_real or batch.ndim < 2 or actual.shape != expected.shape:
        return ""
    columns = np.where(np.isfinite(batch), batch, np.nan).reshape(-1, batch.shape[-1])
    columns = columns.astype(np.float64)
    # One number that is far from the others widens neither the tolerance of a column for them.
    least, low, high, greatest = (_at(columns, share) for share in (0.0, 0.25, 0.75, 1.0))
    spread = np.where(high > low, 2 * (high - low), greatest - least)
    usual, sizes = _usual_sizes(columns), _sizes(expected)
    atol = np.fmax(np.fmax(spread / 10, _ROUNDED * usual), _ROUNDED)
    # The far number itself, such as that of an exponential function, may be less precise.
    atol = np.where(sizes > _FAR * usual, np.fmax(atol, _TOLERANCE[4] * sizes), atol)
    change, _, _ = deviation(actual, expected, atol, _ROUNDED)
    if not change:
        return ""
    excess = _gaps(actual, expected, atol, _ROUNDED)[1]
    column = np.unravel_index(int(np.argmax(excess)), excess.shape)[-1]
    return f"in column {column}, of small numbers, {change}"


def _common_parts(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the values that two arrays can have in common, one of which is padded.

    The padding is at the end of a dimension or at its start.
    """

    def ends(size: int, other: int) -> list[slice]:
        least = min(size, other)
        is_padded = size != other and least
        return [slice(0, least), slice(-least, None)] if is_padded else [slice(0, least)]

    for part in itertools.product(*map(ends, a.shape, b.shape)):
        yield a[part], b[part]


def deviation(
    actual: np.ndarray, expected: np.ndarray, atol: Any = 0.0, rtol: float = 0.0
) -> tuple[str, float, float]:
    """Compares two arrays, whose numbers may differ by `atol + rtol * abs(expected)`.

    Returns:
        The worst value beyond the tolerance, in words, empty for none; the share of the values
        beyond it; and the largest difference of two numbers.
    """
    if actual.shape != expected.shape:
        return f"shape {actual.shape} instead of {expected.shape}", 1.0, np.inf
    form = "{}"
    if is_float(actual) and is_float(expected):
        form = "{:.6g}"
        actual, expected = _numbers(actual), _numbers(expected)
        gap, excess = _gaps(actual, expected, atol, rtol)
    else:
        gap = excess = np.asarray(actual != expected, float)
    share = float((excess > 0).mean()) if excess.size else 0.0
    worst = ""
    if share:
        index = int(np.argmax(excess))
        worst = f"{form} instead of {form}".format(actual.flat[index], expected.flat[index])
        if actual.ndim and len(actual) > 1:
            worst += f" (row {np.unravel_index(index, actual.shape)[0]})"
    return worst, share, float(gap.max(initial=0.0))


def _gaps(
    actual: np.ndarray, expected: np.ndarray, atol: Any, rtol: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the differences of floats, and by how much they are beyond the tolerance."""
    a = _numbers(actual)
    b = _numbers(expected)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):  # of two infinities
        gap = np.where(same, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf))
    return gap, gap - atol - rtol * _sizes(b)


def dense(value: Any) -> np.ndarray:
    """Returns a tensor, or an array of a session, as an array."""
    import tensorflow as tf

    if isinstance(value, tf.RaggedTensor):
        value = value.to_tensor()
    elif isinstance(value, tf.SparseTensor):
        value = tf.sparse.todense(value)
    array = value.numpy() if hasattr(value, "numpy") else value
    # A string without dimensions comes as Python's own bytes.
    return np.array(array, dtype=object) if isinstance(array, bytes) else np.asarray(array)


def not_finite(outputs: Outputs) -> Iterator[tuple[Kind, str, np.ndarray]]:
    """Yields kind, output and mask, for each output and each kind that occurs in it."""
    for key, output in sorted(outputs.items()):
        if is_float(output):
            numbers = _numbers(output)
            masks: dict[Kind, Any] = {"NaN": np.isnan(numbers), "infinite": np.isinf(numbers)}
            yield from ((kind, key, where) for kind, where in masks.items() if where.any())
