"""Predictions beside their labels, as a fact of a report, and drawn on its page."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pydantic

from generic_trainer._core.axes import Axis, number

if TYPE_CHECKING:
    import numpy as np

_FACT = "predictions"
_EXAMPLES = 10
_MOST_POINTS = 300
_MOST_CLASSES = 12
_MOST_CHARACTERS = 40  # of a class
_SIZE, _LEFT, _TOP = 260, 60, 8  # of the scatter plot, in the units of its SVG

_Value = str | int | float


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Labels and predictions of eval examples, which `beats_constant` has scored.

    Attributes:
        label: name of the label.
        examples: label and prediction of a few.
        points: label and prediction of more, if these are numbers.
        classes: the most frequent classes, if the label has classes.
        counts: for each of the classes, how often each of them is predicted.
    """

    label: str
    examples: Sequence[tuple[_Value, _Value]]
    points: Sequence[tuple[float, float]] = ()
    classes: Sequence[_Value] = ()
    counts: Sequence[Sequence[int]] = ()

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The examples as text."""
        return [(_text(label), _text(answer)) for label, answer in self.examples]

    @property
    def matrix(self) -> list[tuple[str, list[tuple[int, float]]]]:
        """The confusion matrix: class, then count and share of its examples for each prediction."""
        rows = []
        for name, counts in zip(self.classes, self.counts, strict=True):
            total = sum(counts) or 1
            rows.append((_text(name), [(count, count / total) for count in counts]))
        return rows

    @property
    def scatter(self) -> dict[str, Any] | None:
        """Ticks, places and texts of the points, and the ends of the line of equal values."""
        points = [point for point in self.points if all(abs(value) < 1e300 for value in point)]
        if not points:
            return None
        axis = Axis.of(value for point in points for value in point)

        def right(share: float) -> float:
            return round(_LEFT + _SIZE * share, 1)

        def down(share: float) -> float:
            return round(_TOP + _SIZE * (1 - share), 1)

        return {
            "note": axis.note,
            "ticks": [(right(share), down(share), text) for share, text in axis.ticks],
            "points": [
                (right(axis.share(x)), down(axis.share(y)), f"{number(x)}, predicted {number(y)}")
                for x, y in points
            ],
        }


def predictions_fact(label: str, labels: np.ndarray, answers: np.ndarray) -> dict[str, Any]:
    """Returns the fact of a report.

    Args:
        label: name of the label.
        labels: shape [examples]; numbers, or classes as integers or bytes.
        answers: the predictions, of the same shape; floats are numbers, all others classes.
    """
    pairs = list(zip(map(_plain, labels.tolist()), map(_plain, answers.tolist()), strict=True))
    fact = {"label": label, "examples": _spread(pairs, _EXAMPLES)}
    if answers.dtype.kind == "f":
        points = [pair for pair in pairs if not any(isinstance(value, str) for value in pair)]
        return {_FACT: {**fact, "points": _spread(points, _MOST_POINTS)}}
    frequent = collections.Counter(value for pair in pairs for value in pair)
    classes = sorted(name for name, _ in frequent.most_common(_MOST_CLASSES))
    counted = collections.Counter(pairs)
    counts = [[counted[row, column] for column in classes] for row in classes]
    return {_FACT: {**fact, "classes": classes, "counts": counts}}


def predictions_of(facts: Mapping[str, Any]) -> Predictions | None:
    """Returns the predictions among the facts of a report; None if there are none.

    Raises:
        ValueError: others have written the fact.
    """
    if _FACT not in facts:
        return None
    predictions = pydantic.TypeAdapter(Predictions).validate_python(facts[_FACT])
    if len({len(predictions.classes), len(predictions.counts), *map(len, predictions.counts)}) != 1:
        raise ValueError("the confusion matrix is not square")
    return predictions


def _spread(pairs: Sequence[tuple[_Value, _Value]], most: int) -> list[list[_Value]]:
    """Returns some of all, not the first ones: rows are often sorted."""
    return [list(pair) for pair in pairs[:: max(1, -(-len(pairs) // most))]]


def _plain(value: Any) -> _Value:
    if isinstance(value, bytes):
        return value.decode(errors="replace")[:_MOST_CHARACTERS]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)  # JSON has no NaN
    return value


def _text(value: _Value) -> str:
    return value if isinstance(value, str) else number(value)
