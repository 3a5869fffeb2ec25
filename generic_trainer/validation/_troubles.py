"""Rows that trouble a signature.

They are found within a budget of seconds. Rows are called in one batch. If that raises, the batch
is halved until single rows are left, so that rows without trouble cost one call: one bad row among
256 costs 17.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from generic_trainer._core.texts import reason_of
from generic_trainer.validation._scoring import Inputs, Kind, Outputs, call, not_finite

_MAX_BATCH = 256
Row = TypeVar("Row")
# Makes a signature's inputs of tf.train.Examples; None where they do not fit.
ToInputs = Callable[[Sequence[Any]], Inputs | None]


class Budget:
    """Seconds that the calls of some checks may take together.

    Args:
        seconds: a call is not made if it is expected to take longer than the seconds that are left.
        seconds_per_row: expected seconds of a row before the first call.
    """

    def __init__(self, seconds: float, seconds_per_row: float = 0.0) -> None:
        self.left_s = seconds
        self.rows = 0
        self._seconds_per_row = seconds_per_row

    def allows(self, rows: int) -> bool:
        """Whether a call with so many rows is expected to end in time."""
        return self.left_s > rows * self._seconds_per_row

    def call(self, signature: Any, inputs: Inputs, rows: int) -> Outputs:
        """Calls a loaded signature, and counts the time."""
        before_s = self.left_s
        with self.charged():
            self.rows += rows
            outputs = call(signature, inputs)
        # A call that raises may have done nothing.
        self._seconds_per_row = (before_s - self.left_s) / max(rows, 1)
        return outputs

    def made(self, rows: Iterable[Row]) -> list[Row]:
        """Makes rows for half of the seconds at most: a schema can have 10,000 features."""
        end_s = time.perf_counter() + self.left_s / 2
        with self.charged():
            return list(itertools.takewhile(lambda _: time.perf_counter() < end_s, rows))

    @contextlib.contextmanager
    def charged(self) -> Iterator[None]:
        """Charges the time of the block to the budget."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.left_s -= time.perf_counter() - started

    @contextlib.contextmanager
    def part(self, share: float, least_s: float = 0.0) -> Iterator[None]:
        """Leaves a share of the seconds, and counts rows anew; the others are left afterwards.

        If that is less than `least_s`, the block has these, even if fewer are left.
        """
        kept_s = self.left_s - max(self.left_s * share, least_s)
        self.left_s -= kept_s
        self.rows = 0
        try:
            yield
        finally:
            self.left_s += kept_s


@dataclasses.dataclass(frozen=True)
class Trouble:
    """An error or a wrong output of a signature for one row.

    Attributes:
        index: the row's number.
        kind: whether it raises, or returns NaN or an infinity.
        reason: the error, or the name of the output.
    """

    index: int
    kind: Kind
    reason: str

    def resembles(self, other: Trouble) -> bool:
        """Whether both seem to have one cause: they differ in numbers only."""
        bare, bare_other = (re.sub(r"-?[\d.]+|\"[^\"]*\"", "#", t.reason) for t in (self, other))
        return self.kind == other.kind and bare == bare_other


def troubles(
    signature: Any, to_inputs: ToInputs, rows: Sequence[Any], budget: Budget, usual: Outputs
) -> Iterator[Trouble]:
    """Yields the troubles of rows, one for a row, as far as a budget lasts.

    If it does not last to find the row that makes a batch raise, the first row of the batch
    represents it.

    Args:
        signature: of the loaded model.
        to_inputs: makes its inputs from rows.
        rows: `tf.train.Example`s.
        budget: for all calls.
        usual: the outputs for rows without trouble. Outputs that are not finite there are ignored.
    """
    ignored = {(kind, key) for kind, key, _ in not_finite(usual)}
    has_trouble = False
    raised = None
    size = 0
    starts = range(0, len(rows), _MAX_BATCH)
    # A stack, first rows on top: if the seconds run out, what was called is not a random part.
    waiting = [range(start, min(start + _MAX_BATCH, len(rows))) for start in starts][::-1]
    while waiting and budget.left_s > 0:
        part = waiting.pop()
        in_part = None  # unknown: half of the rows may fit the seconds, or not raise
        if budget.allows(len(part)):
            with budget.charged():
                inputs = to_inputs([rows[index] for index in part])
            try:
                outputs = None if inputs is None else budget.call(signature, inputs, len(part))
            except Exception as error:
                raised = Trouble(part[0], "error", reason_of(error))
                size = len(part)
                in_part = [raised] if len(part) == 1 else None
            else:
                in_part = None if outputs is None else _in_outputs(outputs, part, ignored)
        if in_part is not None:
            has_trouble = has_trouble or bool(in_part)
            yield from in_part
        elif len(part) > 1:
            middle = len(part) // 2
            waiting += [part[middle:], part[:middle]]
    if waiting and raised is not None and not has_trouble:
        reason = f"{raised.reason} (somewhere in a batch of {size} such rows)"
        yield dataclasses.replace(raised, reason=reason)


def _in_outputs(
    outputs: Outputs, part: range, ignored: Container[tuple[Kind, str]]
) -> list[Trouble] | None:
    """Returns the troubles of some rows, None if only fewer rows can show them."""
    trouble_of: dict[int, Trouble] = {}
    for kind, key, where in not_finite(outputs):
        if (kind, key) in ignored:
            continue
        if len(part) > 1 and where.shape[:1] != (len(part),):
            return None  # an output of the whole batch, which may be the fault of any row
        per_row = where.reshape(len(part), -1).any(axis=1)
        for index in np.flatnonzero(per_row):
            trouble_of.setdefault(index, Trouble(part[index], kind, f"output {key!r}"))
    return [trouble_of[index] for index in sorted(trouble_of)]
