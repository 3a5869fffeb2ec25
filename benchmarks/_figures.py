"""One figure of a benchmark beside its reference, and the lines of the history that keep it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Figure", "add_json_option", "compare", "write"]


@dataclasses.dataclass(frozen=True)
class Figure:
    """What was measured, next to what it is measured against.

    Attributes:
        name: what it is a figure of; the same in every run of the benchmark.
        value: the median of ours.
        unit: of `value` and `reference`, such as "s" or "examples/s".
        beside: what the reference is.
        reference: the median of the other.
        ratio: `value` by `reference`.
        low: the lowest ratio of a pair of runs.
        high: the highest one.
        less_is_better: of a time, say.
    """

    name: str
    value: float
    unit: str
    beside: str
    reference: float
    ratio: float
    low: float
    high: float
    less_is_better: bool


def compare(
    name: str,
    ours: Sequence[float],
    unit: str,
    beside: str,
    theirs: Sequence[float],
    *,
    less_is_better: bool = False,
) -> Figure:
    """Returns the figure of two ways that took turns.

    Args:
        name: see `Figure`.
        ours: a number for each run.
        unit: see `Figure`.
        beside: see `Figure`.
        theirs: the numbers of the reference, run by run.
        less_is_better: see `Figure`.

    Raises:
        ValueError: one way has run more often.
    """
    ratios = [own / other for own, other in zip(ours, theirs, strict=True)]
    value, reference = statistics.median(ours), statistics.median(theirs)
    spread = min(ratios), max(ratios)
    ratio = value / reference
    return Figure(name, value, unit, beside, reference, ratio, *spread, less_is_better)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--json FILE`, which `write` takes."""
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there too")


def write(figures: Sequence[Figure], path: Path | None) -> None:
    """Writes the figures as JSON, where a file was asked for."""
    if path is not None:
        text = json.dumps([dataclasses.asdict(figure) for figure in figures], indent=2)
        path.write_text(text + "\n", encoding="utf-8")
