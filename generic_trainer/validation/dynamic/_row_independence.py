"""Does a row's output depend on the other rows?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from generic_trainer.validation._check import check
from generic_trainer.validation._compare import difference
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail, warn
from generic_trainer.validation._scoring import ODD_ROWS, Scores

__all__ = ["row_independence"]

_REMEDY = (
    "a prediction must not depend on which examples share its batch: normalise with statistics "
    "from training (BatchNormalization with training=False, or Transform) and not over the batch"
)


@check("row_independence", needs=("deterministic",))
def row_independence(model: ModelUnderTest) -> Iterator[Finding]:
    """A row scored alone, or in a smaller batch, gives what it gives in the full batch."""
    for name, scores in model.scores.items():
        for key in sorted(scores.batch):
            told, certain = _first_difference(scores, key)
            if told:
                judge = fail if certain else warn
                yield judge(f"signature {name!r}, output {key!r}: {told}", _REMEDY)


def _first_difference(scores: Scores, key: str) -> tuple[str, bool]:
    batch = scores.batch[key]
    if batch.ndim == 0 or len(batch) != scores.feed.rows:
        return "", False  # output_per_row says so
    for row, outputs in enumerate(scores.single):
        told, certain = difference(_rows(outputs[key]), batch[row : row + 1])
        if told:
            return f"row {row} alone gives {told} in a batch of {len(batch)}", certain
    told, certain = difference(_rows(scores.odd[key]), batch[:ODD_ROWS])
    size = min(ODD_ROWS, len(batch))
    return (f"a batch of {size} gives {told} in one of {len(batch)}" if told else ""), certain


def _rows(array: np.ndarray) -> np.ndarray:
    return np.atleast_1d(array)
