"""A run's progress in the words and numbers that people read, whatever shows them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from generic_trainer._core.progress import Points, Progress

_WIDTH, _HEIGHT, _MARGIN = 300, 90, 4  # of a chart, in the units of its SVG
_MOST_POINTS, _MOST_CHARTS = 150, 12
_LATEST = 5  # speeds that the one that is said is the mean of
_STYLES = ("first", "second")
_VALIDATION = ("val_", "validation_", "evaluation_", "eval_")
_HEADLINES = {
    "": "The run begins",
    "preparing": "Preparing the run",
    "packing": "Starting the workers",
    "training": "Training",
    "checks": "Checking the model",
    "publishing": "Publishing the model",
    "published": "Published",
    "failed": "The run has failed",
}
_BOUNDS = {
    "input": (
        "Input-bound: the processors wait, most likely for data.",
        "Read them with fn_args.data_accessor, which keeps them parsed in memory if "
        "GENERIC_TRAINER_READER_MEMORY_MB allows; give each map() of your own "
        "num_parallel_calls=tf.data.AUTOTUNE, and end the dataset with prefetch().",
    ),
    "compute": (
        "Compute-bound: the steps compute all the time.",
        "A GPU, more workers (Distribution(num_workers=...)) or mixed precision make it faster; "
        "the data come fast enough.",
    ),
    "overhead": (
        "Overhead-bound: to start a step takes longer than to compute it.",
        "Have Keras run several at once, model.compile(steps_per_execution=16), or take larger "
        "batches.",
    ),
}


@dataclasses.dataclass(frozen=True)
class Line:
    """One curve of a chart: `points` as SVG has them, and its last value."""

    label: str
    style: str
    points: str
    last: str


@dataclasses.dataclass(frozen=True)
class Chart:
    """Curves on one pair of axes, and how far these go."""

    name: str
    lines: tuple[Line, ...]
    lowest: str
    highest: str
    until: str


@dataclasses.dataclass(frozen=True)
class View:
    """What there is to be seen of a run.

    Attributes:
        headline: its phase.
        share: of the steps that are done, from 0 to 1; None where nobody knows.
        tiles, facts: label and value, the former short ones.
        charts: losses, metrics, then throughput and machine; `more` metrics are left out.
        bound: what limits the speed, and what helps; empty where that is not known.
        error: why the run failed.
    """

    run_dir: str
    headline: str
    share: float | None
    tiles: list[tuple[str, str]]
    facts: list[tuple[str, str]]
    charts: list[Chart]
    more: int
    bound: tuple[str, str] | None
    error: str


def view_of(progress: Progress, run_dir: str, scalars: Mapping[str, Points]) -> View:
    """Returns what there is to be seen.

    Args:
        progress: how the run is.
        run_dir: of the ModelRun artifact.
        scalars: of its event files; see `event_files.scalars_by_step`.
    """
    seen = {_key(name)[0] for name in progress.curves}
    curves = {**progress.curves, **{k: v for k, v in scalars.items() if _key(k)[0] not in seen}}
    groups: dict[str, list[tuple[str, Points]]] = {}
    for name, points in curves.items():
        key, label = _key(name)
        groups.setdefault(key, []).append((label, points))
    last_steps = (points[-1][0] for points in scalars.values() if points)
    step = progress.step or int(max(last_steps, default=0))
    names = sorted(groups, key=lambda name: (name != "loss", "loss" not in name, name))
    charts = [_chart(name, groups[name], "step {:,.0f}") for name in names]
    charts = [chart for chart in charts if chart.lines]
    return View(
        run_dir=run_dir,
        headline=_HEADLINES.get(progress.phase, progress.phase),
        share=min(1.0, step / progress.steps) if progress.steps else None,
        tiles=_tiles(progress, step),
        facts=_facts(progress),
        charts=charts[:_MOST_CHARTS] + _machine(progress),
        more=len(charts[_MOST_CHARTS:]),
        bound=_BOUNDS.get(progress.bound),
        error=progress.error,
    )


def duration(seconds: float) -> str:
    """Returns a time as people say it: "45 s", "3 min 20 s", "2 h 5 min"."""
    whole = max(0, round(seconds))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _tiles(progress: Progress, step: int) -> list[tuple[str, str]]:
    of_steps = f" of {progress.steps:,}" if progress.steps else ""
    of_epochs = f" of {progress.epochs}" if progress.epochs else ""
    left_s = progress.left_s

    def last(points: Points, form: str) -> str:
        return form.format(points[-1][1]) if points else ""

    def recent(points: Points, form: str) -> str:
        values = [value for _, value in points[-_LATEST:]]
        return form.format(sum(values) / len(values)) if values else ""

    examples_per_s = recent(progress.examples_per_s, "{:,.0f}")
    tiles = [
        ("step", f"{step:,}{of_steps}" if step else ""),
        ("epoch", f"{progress.epoch}{of_epochs}" if progress.epoch else ""),
        ("examples/s", examples_per_s),
        ("steps/s", "" if examples_per_s else recent(progress.steps_per_s, "{:,.3g}")),
        ("so far" if left_s is not None else "took", duration(progress.seconds)),
        ("left", duration(left_s) if left_s is not None else ""),
        ("CPU", last(progress.cpu, "{:.0%}")),
        ("GPU", last(progress.gpu, "{:.0%}")),
        ("memory", last(progress.memory_mb, "{:,.0f} MiB")),
        ("restarts", str(len(progress.restarts)) if progress.restarts else ""),
    ]
    return [(label, value) for label, value in tiles if value]


def _facts(progress: Progress) -> list[tuple[str, str]]:
    workers = ", ".join(f"{name}: {state}" for name, state in progress.tasks.items())
    saved = progress.checkpoints
    facts = [
        ("Workers", workers if len(progress.tasks) > 1 else ""),
        ("Restarts", "\n".join(progress.restarts)),
        ("Checkpoints", f"{len(saved)}, the last at step {saved[-1]:,}" if saved else ""),
        ("Data", "\n".join(dict.fromkeys(progress.data))),
    ]
    return [(label, value) for label, value in facts if value]


def _machine(progress: Progress) -> list[Chart]:
    speed = ("examples/s", progress.examples_per_s)
    if not progress.examples_per_s:
        speed = ("steps/s", progress.steps_per_s)
    used = [("CPU", progress.cpu), ("GPU", progress.gpu)]
    charts = [
        _chart(speed[0], [("", speed[1])], "{:,.0f} s"),
        _chart("busy", used, "{:,.0f} s"),
        _chart("memory in MiB", [("", progress.memory_mb)], "{:,.0f} s"),
    ]
    return [chart for chart in charts if chart.lines]


def _key(name: str) -> tuple[str, str]:
    """Returns the chart that a curve belongs on, and its label there."""
    run, _, tag = name.rpartition("/")
    tag = tag.removeprefix("epoch_")
    for prefix in _VALIDATION:
        if tag.startswith(prefix):
            return tag.removeprefix(prefix), "validation"
    return tag, "validation" if any(word.rstrip("_") in run for word in _VALIDATION) else run


def _chart(name: str, curves: list[tuple[str, Points]], until: str) -> Chart:
    finite = [(label, _thinned(points)) for label, points in curves[: len(_STYLES)]]
    finite = [(label, points) for label, points in finite if points]
    xs = [x for _, points in finite for x, _ in points] or [0.0]
    ys = [y for _, points in finite for _, y in points] or [0.0]
    width, height = max(xs) - min(xs) or 1.0, max(ys) - min(ys) or 1.0

    def place(x: float, y: float) -> str:
        across = (x - min(xs)) / width * _WIDTH
        down = (max(ys) - y) / height * (_HEIGHT - 2 * _MARGIN) + _MARGIN
        return f"{across:.1f},{down:.1f}"

    lines = tuple(
        Line(label, style, " ".join(place(*point) for point in points), _short(points[-1][1]))
        for (label, points), style in zip(finite, _STYLES, strict=False)
    )
    return Chart(name, lines, _short(min(ys)), _short(max(ys)), until.format(max(xs)))


def _thinned(points: Points) -> Points:
    """Returns the points that are numbers; of many, one of each stretch, and the last."""
    good = [point for point in points if all(map(math.isfinite, point)) and abs(point[1]) < 1e300]
    every = -(-len(good) // _MOST_POINTS) or 1
    return good[::every] + (good[-1:] if (len(good) - 1) % every else [])


def _short(value: Any) -> str:
    return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.3g}"
