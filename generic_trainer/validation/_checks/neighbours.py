"""Outputs of a row beside other rows.

A model may treat few rows by others of their batch, such as an unknown word by the mean of the
batch. So 1,000 rows are called in 6 large batches, and again in 61 small ones of every 12th row,
which take most neighbours from each row::

    large    0 1 2 3 ... 191
    small    0 12 24 ... 180    1 13 25 ... 181    ...    11 23 35 ... 191
"""

import contextlib
import itertools
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from generic_trainer.validation._check import Findings
from generic_trainer.validation._checks.predictions import first_difference, remedy_of_varying
from generic_trainer.validation._feeds import inputs_of
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._report import keep_example
from generic_trainer.validation._schema_rows import ProbeRow, parsed
from generic_trainer.validation._scoring import Outputs, Scores, is_float

_LARGE = 192  # rows
_SMALL = 16


def beside_others(
    model: ModelUnderTest,
    name: str,
    scored: Scores,
    rows: Sequence[ProbeRow],
    remedy: str,
    *,
    size: int = _SMALL,
    certain: bool = True,
) -> Findings:
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
            others = parsed(scored.feed.records)
            keys = [
                key
                for key, output in sorted(scored.batch.items())
                if scored.has_rows(key) and not scored.varies(key)[0]
                # Of a few discrete values one may flip where two scores are nearly equal.
                if (size == 1 or is_float(output)) and not first_difference(scored, key)[1]
            ]
        for start in range(0, len(rows) if keys else 0, _LARGE):
            part = rows[start : start + _LARGE]
            if found := _first_changed(model, name, scored, keys, others, part, size):
                shown = keep_example(model.facts, found.row.example)
                message = f"signature {name!r}, {found.row.what}: {found.change}; {shown}"
                if found.is_random:
                    remedy = remedy_of_varying(model.signatures[name])
                yield model.of_rows(certain and found.is_certain, message, remedy)
                return


class _Changed(NamedTuple):
    """A row with other outputs beside other rows.

    Attributes:
        row: the row.
        change: how they differ, in words.
        is_random: whether they differ in a second call, too.
        is_certain: whether they differ by more than sums over lists of another width may.
    """

    row: ProbeRow
    change: str
    is_random: bool = False
    is_certain: bool = True


def _first_changed(
    model: ModelUnderTest,
    name: str,
    scored: Scores,
    keys: Sequence[str],
    others: Sequence[Any],
    rows: Sequence[ProbeRow],
    size: int,
) -> _Changed | None:
    """Returns the first row with other outputs beside other rows."""
    examples = [*others, *(row.example for row in rows), *others]
    rounds: set[str] = set()  # outputs that only rounding changes

    def call(batch: Sequence[Any]) -> Outputs:
        if not model.budget.allows(len(batch)):
            return {}
        with model.budget.charged():
            inputs = inputs_of(model.signatures[name], scored.feed, batch)
        signature = model.loaded.signatures[name]
        outputs = {} if inputs is None else model.budget.call(signature, inputs, len(batch))
        return {key: np.atleast_1d(output) for key, output in outputs.items()}

    def change_of(key: str, found: np.ndarray, n: int, place: int, *, strictly: bool = True) -> str:
        """Returns how row n of an output differs from the row of the example beside all others."""
        with model.budget.charged():
            batch = scored.batch[key] if strictly else None
            usual = together[key][place : place + 1]
            change, certain = scored.compared(key, found[n : n + 1], usual, batch)
        return change if certain else ""

    def beside_copies(key: str, place: int, kept: Collection[int]) -> np.ndarray:
        """Returns an output of a batch of the same size, with copies of a row for others."""
        copies = [examples[p if p in kept else place] for p in range(len(examples))]
        return call(copies).get(key, together[key])

    together = call(examples)
    groups = -(-len(rows) // size) if together else 0
    for group in range(groups):
        places = list(range(len(others) + group, len(others) + len(rows), groups))
        apart = call([examples[place] for place in places])
        for key, (n, place) in itertools.product(keys if apart else (), enumerate(places)):
            if key in rounds or not (change := change_of(key, apart[key], n, place)):
                continue
            # A row that is drawn of few values may have the same one twice; of all, one differs.
            again = call(examples).get(key, together[key])
            differing = (again != together[key]).reshape(len(examples), -1).any(axis=1)
            for number, row in enumerate(rows):
                other = len(others) + number
                if not differing[other] or not model.budget.allows(1):
                    continue
                if varied := change_of(key, again, other, other):
                    change = f"output {key!r} of a second call is {varied}"
                    return _Changed(row, change, is_random=True)
            # Rounding depends on the size of a batch, and a threshold may multiply it: the other
            # rows are the cause only if a batch of the same size differs without them.
            copied = beside_copies(key, place, places)
            if not change_of(key, copied, place, place):
                rounds.add(key)
                continue
            row = rows[place - len(others)]
            # Sums over lists round by the width of the batch, which its longest lists decide.
            wider = _wider(examples, places)
            wide = beside_copies(key, place, {*places, *wider}) if wider else copied
            few = "" if size == 1 else f"in a batch of {len(places)} "
            return _Changed(
                row,
                f"{few}output {key!r} is {change} in a batch of {len(examples)}",
                is_certain=all(
                    change_of(key, found, place, place, strictly=False) for found in (copied, wide)
                ),
            )
    return None


def _wider(examples: Sequence[Any], places: Collection[int]) -> set[int]:
    """Returns the places of lists that are longer than those of the feature at some places.

    One place for each feature whose lists, or the texts in them, are of different lengths.
    """
    wider = set()
    widths: dict[str, dict[tuple[int, int], list[int]]] = {}
    for place, example in enumerate(examples):
        for name, feature in example.features.feature.items():
            kind = feature.WhichOneof("kind")
            values = getattr(feature, kind).value if kind else ()
            text = max(map(len, values), default=0) if kind == "bytes_list" else 0
            if values:
                widths.setdefault(name, {}).setdefault((len(values), text), []).append(place)
    for by_width in widths.values():
        longest = by_width[max(by_width)]
        if len(by_width) > 1 and not {*longest} & {*places}:
            wider.add(longest[-1])
    return wider
