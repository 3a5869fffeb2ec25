"""Outputs of a row beside other rows.

A model may treat few rows by others of their batch, such as an unknown word by the mean of the
batch. So 1,000 rows are called in 6 large batches, and again in 61 small ones of every 12th row,
which take most neighbours from each row::

    large    0 1 2 3 ... 191
    small    0 12 24 ... 180    1 13 25 ... 181    ...    11 23 35 ... 191
"""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from generic_trainer.validation import _scoring
from generic_trainer.validation._check import Finding
from generic_trainer.validation._checks.predictions import RANDOM_REMEDY, first_difference
from generic_trainer.validation._feeds import inputs_of
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._report import keep_example
from generic_trainer.validation._schema_rows import ProbeRow, parsed

_LARGE = 192  # rows
_SMALL = 16


def beside_others(
    model: ModelUnderTest,
    name: str,
    scored: _scoring.Scores,
    rows: Sequence[ProbeRow],
    remedy: str,
    *,
    size: int = _SMALL,
    certain: bool = True,
) -> Iterator[Finding]:
    """Yields a finding for the first row that has other outputs in a smaller batch.

    Args:
        model: the model.
        name: of its signature.
        scored: outputs of the signature.
        rows: the rows to compare; those that raise end the comparison.
        remedy: of the finding.
        size: rows of a small batch.
        certain: whether consumers are certain to send these rows.
    """
    with contextlib.suppress(Exception):  # of a call that other checks report
        with model.budget.charged():
            keys = [
                key
                for key, output in sorted(scored.batch.items())
                if scored.has_rows(key) and not scored.varies(key)[0]
                # Of a few discrete values one may flip where two scores are nearly equal.
                if (size == 1 or _scoring.is_float(output)) and not first_difference(scored, key)[1]
            ]
        for start in range(0, len(rows) if keys else 0, _LARGE):
            part = rows[start : start + _LARGE]
            if found := _first_changed(model, name, scored, keys, part, size):
                row, change, is_random = found
                shown = keep_example(model.facts, row.example)
                message = f"signature {name!r}, {row.what}: {change}; {shown}"
                yield model.of_rows(certain, message, RANDOM_REMEDY if is_random else remedy)
                return


def _first_changed(
    model: ModelUnderTest,
    name: str,
    scored: _scoring.Scores,
    keys: Sequence[str],
    rows: Sequence[ProbeRow],
    size: int,
) -> tuple[ProbeRow, str, bool] | None:
    """Returns the first row with other outputs beside other rows, how they differ, if at random."""
    others = parsed(scored.feed.records)
    examples = [*others, *(row.example for row in rows), *others]

    def call(batch: Sequence[Any]) -> _scoring.Outputs:
        allowed = model.budget.allows(len(batch))
        inputs = inputs_of(model.signatures[name], scored.feed, batch) if allowed else None
        signature = model.loaded.signatures[name]
        outputs = {} if inputs is None else model.budget.call(signature, inputs, len(batch))
        return {key: np.atleast_1d(output) for key, output in outputs.items()}

    def change_of(key: str, found: np.ndarray, usual: np.ndarray) -> str:
        with model.budget.charged():
            is_half = key in scored.half
            change = _scoring.difference(found, usual, scored.batch[key], is_half=is_half)
        return change[0] if change[1] else ""

    together = call(examples)
    groups = -(-len(rows) // size) if together else 0
    for group in range(groups):
        places = list(range(len(others) + group, len(others) + len(rows), groups))
        apart = call([examples[place] for place in places])
        for key, (n, place) in itertools.product(keys if apart else (), enumerate(places)):
            usual = together[key][place : place + 1]
            if not (change := change_of(key, apart[key][n : n + 1], usual)):
                continue
            # Rounding depends on the size of a batch, and a threshold may multiply it: the other
            # rows are the cause only if a batch of the same size differs without them.
            copies = [examples[p if p in places else place] for p in range(len(examples))]
            if not change_of(key, call(copies)[key][place : place + 1], usual):
                return None
            row = rows[place - len(others)]
            again = call(examples).get(key, together[key])[place : place + 1]
            if varied := change_of(key, again, usual):
                return row, f"output {key!r} of a second call is {varied}", True
            few = "" if size == 1 else f"in a batch of {len(places)} "
            return row, f"{few}output {key!r} is {change} in a batch of {len(examples)}", False
    return None
