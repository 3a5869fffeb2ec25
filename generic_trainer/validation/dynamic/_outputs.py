"""Do the outputs make sense: a row for each row, numbers, and not all the same?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from generic_trainer.validation._check import check
from generic_trainer.validation._compare import is_float
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail, warn
from generic_trainer.validation._scoring import Scores

__all__ = ["output_per_row", "outputs_finite", "outputs_vary"]

_PREPROCESSING = "transform_"  # TFX's names: transform_features, transform_labels


@check("output_per_row", needs=("scores",))
def output_per_row(model: ModelUnderTest) -> Iterator[Finding]:
    """The first dimension of every output is the number of rows."""
    for name, scores in _served(model):
        for key, output in sorted(scores.batch.items()):
            if output.shape[:1] != (scores.feed.rows,):
                yield fail(
                    f"signature {name!r}: {scores.feed.rows} rows give output {key!r} of shape "
                    f"{list(output.shape)}",
                    "return one row per example; BulkInferrer and Evaluator split outputs by row",
                )


@check("outputs_finite", needs=("scores",))
def outputs_finite(model: ModelUnderTest) -> Iterator[Finding]:
    """No output is NaN or infinite."""
    for name, scores in model.scores.items():
        for key, output in sorted(scores.batch.items()):
            if is_float(output) and not np.isfinite(output.astype(np.float64)).all():
                is_nan = bool(np.isnan(output.astype(np.float64)).any())
                judge = fail if is_nan and scores.feed.real else warn
                kind = "NaN" if is_nan else "infinite values"
                yield judge(
                    f"signature {name!r}: output {key!r} has {kind} for {scores.feed.source}",
                    "look for a division by zero, the log of zero, or features whose missing "
                    "values became NaN; the Evaluator turns NaN into silent nonsense",
                )


@check("outputs_vary", needs=("scores",))
def outputs_vary(model: ModelUnderTest) -> Iterator[Finding]:
    """Different examples do not all get the same outputs."""
    for name, scores in _served(model):
        if name.startswith(_PREPROCESSING):
            continue  # it may return the label, of which a few examples can well have one value
        if scores.feed.real and scores.feed.rows > 1 and all(map(_constant, scores.batch.values())):
            yield warn(
                f"signature {name!r} gives the same outputs for {scores.feed.rows} examples",
                "see whether the features reach the model (names, vocabulary, scaling) and "
                "whether it was trained",
            )


def _served(model: ModelUnderTest) -> Iterator[tuple[str, Scores]]:
    return ((n, scores) for n, scores in model.scores.items() if n in model.serving_signatures)


def _constant(output: np.ndarray) -> bool:
    return output.ndim > 0 and len(output) > 1 and bool((output == output[:1]).all())
