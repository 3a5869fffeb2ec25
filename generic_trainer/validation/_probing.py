"""Rows that trouble a signature: found within a budget of seconds, shrunk to the smallest.

Rows are called in one batch. Where that raises, the batch is halved until single rows are left, so
that what is well costs one call.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from generic_trainer._core.texts import reason_of
from generic_trainer.validation._schema_rows import without
from generic_trainer.validation._scoring import Outputs, call, is_float

_MAX_SHRINKING_CALLS = 60
_MAX_BATCH = 256
_SHORT = 16  # bytes, or values of a list, below which nobody minds how long it is

Kind = Literal["error", "NaN", "infinite"]
Rows = Sequence[Any]
# Makes a signature's inputs of tf.train.Examples; None where they do not fit.
ToInputs = Callable[[Rows], "dict[str, np.ndarray] | None"]


class Budget:
    """Seconds that the calls of some checks may take together.

    Args:
        seconds: how many; a call is not made when it is expected to take longer than what is left.
        seconds_per_row: what a row is expected to take before one was called.
    """

    def __init__(self, seconds: float, seconds_per_row: float = 0.0) -> None:
        self.left_s = seconds
        self.rows = 0
        self._seconds_per_row = seconds_per_row

    def allows(self, rows: int) -> bool:
        """Whether a call with so many rows is expected to end in time."""
        return self.left_s > rows * self._seconds_per_row

    def call(self, signature: Any, inputs: Mapping[str, np.ndarray], rows: int) -> Outputs:
        """Calls a loaded signature, and counts the time."""
        started = time.perf_counter()
        with self.charged():
            self.rows += rows
            outputs = call(signature, inputs)
        # What raises may do so before it has done anything.
        self._seconds_per_row = (time.perf_counter() - started) / max(rows, 1)
        return outputs

    @contextlib.contextmanager
    def charged(self) -> Iterator[None]:
        """Takes the time of what is done inside from the budget."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.left_s -= time.perf_counter() - started

    @contextlib.contextmanager
    def part(self, share: float) -> Iterator[Budget]:
        """Yields a budget with a share of what is left; what it does not use stays here."""
        part = Budget(self.left_s * share, self._seconds_per_row)
        before_s = part.left_s
        try:
            yield part
        finally:
            self.left_s -= before_s - part.left_s
            self.rows += part.rows
            self._seconds_per_row = part._seconds_per_row


@dataclasses.dataclass(frozen=True)
class Trouble:
    """What is wrong with what a signature returns for one row.

    Attributes:
        index: the row's number.
        kind: whether it raises, or returns NaN or an infinity.
        reason: what it says, or which output it is.
    """

    index: int
    kind: Kind
    reason: str

    def resembles(self, other: Trouble) -> bool:
        """Whether both have one cause, as far as numbers aside tell."""
        bare, bare_other = (re.sub(r"-?[\d.]+|\"[^\"]*\"", "#", t.reason) for t in (self, other))
        return self.kind == other.kind and bare == bare_other


class Probe:
    """One signature, called with rows within a budget.

    Args:
        signature: as it is loaded.
        to_inputs: makes its inputs of rows.
        budget: for all calls.
        usual: what the signature returns for rows that are well. Outputs that are not finite there
            trouble nobody here.
    """

    def __init__(self, signature: Any, to_inputs: ToInputs, budget: Budget, usual: Outputs) -> None:
        self._signature = signature
        self._to_inputs = to_inputs
        self._budget = budget
        self._raised: Trouble | None = None
        self._usual = {(kind, key) for kind, key, _ in not_finite(usual)}

    def troubles(self, rows: Rows) -> Iterator[Trouble]:
        """Yields what is wrong with rows, as far as the budget lasts; one trouble for a row.

        Where it does not last to find the row that a batch raises for, one of the batch stands for
        it.
        """
        told = False
        self._raised = None
        starts = range(0, len(rows), _MAX_BATCH)
        waiting = [range(start, min(start + _MAX_BATCH, len(rows))) for start in starts][::-1]
        while waiting and self._budget.left_s > 0:
            part = waiting.pop()
            if self._budget.allows(len(part)):
                found = self._of_part(rows, part)
                if found is not None:
                    told = told or bool(found)
                    yield from found
                    continue
            if len(part) > 1:
                middle = len(part) // 2
                waiting += [part[middle:], part[:middle]]
        if waiting and self._raised is not None and not told:
            yield self._raised

    def _of_part(self, rows: Rows, part: range) -> list[Trouble] | None:
        """Returns the troubles of some rows, None where it takes fewer rows to tell."""
        with self._budget.charged():
            inputs = self._to_inputs([rows[index] for index in part])
        if inputs is None:
            return None
        try:
            outputs = self._budget.call(self._signature, inputs, len(part))
        except Exception as error:
            if len(part) == 1:
                return [Trouble(part[0], "error", reason_of(error))]
            reason = f"{reason_of(error)} (somewhere in a batch of {len(part)} such rows)"
            self._raised = Trouble(part[0], "error", reason)
            return None
        return self._in_outputs(outputs, part)

    def _in_outputs(self, outputs: Outputs, part: range) -> list[Trouble] | None:
        troubles: dict[int, Trouble] = {}
        for kind, key, where in not_finite(outputs):
            if (kind, key) in self._usual:
                continue
            if len(part) > 1 and where.shape[:1] != (len(part),):
                return None
            per_row = where.reshape(len(part), -1).any(axis=1)
            for index in np.flatnonzero(per_row):
                troubles.setdefault(index, Trouble(part[index], kind, f"output {key!r}"))
        return [troubles[index] for index in sorted(troubles)]

    def shrink(self, example: Any, trouble: Trouble) -> Any:
        """Returns the smallest part of a `tf.train.Example` with the same trouble."""
        smallest, left = example, _MAX_SHRINKING_CALLS
        smaller = _smaller(smallest)
        while left and (candidate := next(smaller, None)) is not None:
            left -= 1
            if any(trouble.resembles(found) for found in self.troubles([candidate])):
                smallest, smaller = candidate, _smaller(candidate)
        return smallest


def not_finite(outputs: Outputs) -> Iterator[tuple[Kind, str, np.ndarray]]:
    """Yields kind, output and where it is, for each output and each kind that there is."""
    for key, output in sorted(outputs.items()):
        if is_float(output):
            numbers = output.astype(np.complex128 if output.dtype.kind == "c" else np.float64)
            kinds: tuple[tuple[Kind, np.ndarray], ...] = (
                ("NaN", np.isnan(numbers)),
                ("infinite", np.isinf(numbers)),
            )
            yield from ((kind, key, where) for kind, where in kinds if where.any())


def _smaller(example: Any) -> Iterator[Any]:
    """Yields an example without half of its features, without each, and with shorter values."""
    names = sorted(example.features.feature)
    middle = len(names) // 2
    halves = [names[:middle], names[middle:]] if middle > 1 else []
    for dropped in (*halves, *([name] for name in names)):
        yield without(example, dropped)
    for name, feature in sorted(example.features.feature.items()):
        kind = feature.WhichOneof("kind")
        values = list(getattr(feature, kind).value) if kind else []
        shorter = [values[: len(values) // 2]] if len(values) > 1 else []
        if kind == "bytes_list" and any(len(value) > _SHORT for value in values):
            shorter.append([value[: max(len(value) // 2, _SHORT)] for value in values])
        for fewer in shorter:
            candidate = copy.deepcopy(example)
            getattr(candidate.features.feature[name], kind).value[:] = fewer
            yield candidate
