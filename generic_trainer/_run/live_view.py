"""A run as people read it: headline, numbers and charts, for its live page, report and notebook.

It only reads the files of `_core.progress`; training never waits for it.
"""

import dataclasses
import itertools
import math
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from generic_trainer._core.axes import Axis, number
from generic_trainer._core.event_files import scalars_by_step
from generic_trainer._core.files import gfile, read_whole
from generic_trainer._core.keras import keras_module, keras_version
from generic_trainer._core.progress import GOODPUT_PARTS, LOG_FILE, Points, Progress
from generic_trainer._core.texts import duration, hyperparameter_values
from generic_trainer.launchers import TrainingRequest
from generic_trainer.validation import html_templates

# The place of the curves within a chart, in the units of its SVG, beside ticks and values.
_LEFT, _TOP, _WIDTH, _HEIGHT = 52, 22, 420, 130
_MOST_POINTS = 150
_MOST_CHARTS = 12
_LATEST = 5  # speeds that the displayed one is the mean of
_MOST_LINES = 2  # of a chart: that of the training, and that of the validation
_VALIDATION = ("val_", "validation_", "evaluation_", "eval_")
_DUPLICATES = "_vs_iterations"  # of Keras' TensorBoard callback: the same values as by epoch
# Phases in which the user's code trains, or reads data before or after that.
GOES_ON = ("training", "validating", "adapting", "evaluating", "predicting")
LIVE_FILE = "live.html"
REPORT_FILE = "report.html"
_LOG_TAIL = 20_000  # characters


@dataclasses.dataclass(frozen=True)
class Line:
    """One curve of a chart: its points as coordinates of an SVG, and its last value."""

    label: str
    points: tuple[str, ...]
    last: str


@dataclasses.dataclass(frozen=True)
class Chart:
    """Curves on one pair of axes.

    Attributes:
        name: of the metric.
        across: `"step"` or `"seconds"`.
        lines: the curves.
        x_ticks, y_ticks: coordinate of each tick, and its label.
        note: `"logarithmic"`, `"cut"` if the vertical axis leaves out zero, or empty.
        values: the text shown while the pointer is over a part of the chart, with left end and
            width of this part.
    """

    name: str
    across: str
    lines: tuple[Line, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    note: str
    values: tuple[tuple[float, float, str], ...]


@dataclasses.dataclass(frozen=True)
class View:
    """The state of a run, ready to be shown.

    Attributes:
        headline: its phase.
        share: share of the steps that are done, from 0 to 1; None if the number is unknown.
        tiles, facts: label and value, the former short ones.
        charts: losses, metrics, then throughput and machine; `more` metrics are left out.
        error: the reason why the run failed.
    """

    run_dir: str
    headline: str
    share: float | None
    tiles: list[tuple[str, str]]
    facts: list[tuple[str, str]]
    charts: list[Chart]
    more: int
    error: str


def view_of(progress: Progress, run_dir: str, scalars: Mapping[str, Points]) -> View:
    """Returns the view of a run.

    Args:
        progress: its progress.
        run_dir: directory of the ModelRun artifact.
        scalars: of its event files; see `event_files.scalars_by_step`.
    """
    seen = {_key(name)[0] for name in progress.curves}
    curves = {
        **progress.curves,
        **{name: points for name, points in scalars.items() if _key(name)[0] not in seen},
    }
    groups: dict[str, list[tuple[str, Points]]] = {}
    for name, points in curves.items():
        key, label = _key(name)
        if not key.endswith(_DUPLICATES):
            groups.setdefault(key, []).append((label, points))
    last_steps = (points[-1][0] for points in scalars.values() if points)
    step = progress.step or int(max(last_steps, default=0))
    names = sorted(groups, key=lambda name: (name != "loss", "loss" not in name, name))
    shown = {name: groups[name] for name in names if "loss" in name or _varies(groups[name])}
    charts = _charts(shown, "step")
    return View(
        run_dir=run_dir,
        headline=_headline(progress, step),
        share=min(1.0, step / progress.steps) if progress.steps else None,
        tiles=_tiles(progress, step),
        facts=_facts(progress),
        charts=charts[:_MOST_CHARTS] + _machine(progress),
        more=len(charts[_MOST_CHARTS:]),
        error=progress.error,
    )


def _headline(progress: Progress, step: int) -> str:
    if progress.phase == "training" and progress.epochs and not step:  # `fit` has begun
        return "Training: tracing the first step"
    return progress.phase.capitalize() or "Preparing"


def _tiles(progress: Progress, step: int) -> list[tuple[str, str]]:
    of_steps = f" of {progress.steps:,}" if progress.steps else ""
    of_epochs = f" of {progress.epochs}" if progress.epochs else ""
    left_s = progress.left_s
    took_s = progress.changed_s - progress.started_s

    def last(points: Points, form: str, count: int = 1) -> str:
        values = [value for _, value in points[-count:]]
        return form.format(sum(values) / len(values)) if values else ""

    examples_per_s = last(progress.examples_per_s, "{:,.0f}", _LATEST)
    tiles = [
        ("step", f"{step:,}{of_steps}" if step else ""),
        ("epoch", f"{progress.epoch}{of_epochs}" if progress.epoch else ""),
        ("examples/s", examples_per_s),
        ("steps/s", "" if examples_per_s else last(progress.steps_per_s, "{:,.3g}", _LATEST)),
        ("so far" if progress.phase in GOES_ON else "took", duration(took_s)),
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
    data = list(progress.data)
    for folder, source in progress.sources.items():
        data = [message.replace(folder, source) for message in data]
    spent = sorted(progress.time_shares.items(), key=lambda part: -part[1])
    facts = [
        ("Workers", workers if len(progress.tasks) > 1 else ""),
        ("Restarts", "\n".join(progress.restarts)),
        ("Time", ", ".join(f"{GOODPUT_PARTS[name]} {share:.0%}" for name, share in spent if share)),
        ("Checkpoints", f"{len(saved)}, the last at step {saved[-1]:,}" if saved else ""),
        ("Data", "\n".join(dict.fromkeys(data))),
    ]
    return [(label, value) for label, value in facts if value]


def _machine(progress: Progress) -> list[Chart]:
    unit = "examples/s"
    speed = progress.examples_per_s
    if not speed:
        unit = "steps/s"
        speed = progress.steps_per_s
    shares = (("CPU", progress.cpu), ("GPU", progress.gpu))
    used = [(name, [(at, 100 * share) for at, share in points]) for name, points in shares]
    curves = {unit: [("", speed)], "busy, in %": used, "memory in MiB": [("", progress.memory_mb)]}
    return _charts(curves, "seconds")


def _varies(curves: Iterable[tuple[str, Points]]) -> bool:
    return any(len(points) < 2 or len({y for _, y in points}) > 1 for _, points in curves)


def _key(name: str) -> tuple[str, str]:
    """Returns the chart that a curve belongs on, and its label there."""
    run, _, tag = name.rpartition("/")
    tag = tag.removeprefix("epoch_")
    for prefix in _VALIDATION:
        if tag.startswith(prefix):
            return tag.removeprefix(prefix), "validation"
    return tag, "validation" if any(word.rstrip("_") in run for word in _VALIDATION) else run


def _charts(curves: Mapping[str, list[tuple[str, Points]]], across: str) -> list[Chart]:
    """Returns a chart for each name whose curves have finite points."""
    charts = []
    for name, group in curves.items():
        thinned = [(label, _thinned(points)) for label, points in group[:_MOST_LINES]]
        if finite := [(label, points) for label, points in thinned if points]:
            charts.append(_chart(name, finite, across))
    return charts


def _chart(name: str, curves: list[tuple[str, Points]], across: str) -> Chart:
    xs, ys = zip(*(point for _, points in curves for point in points), strict=True)
    is_metric = across == "step"
    x_axis = Axis.of(xs, cut=is_metric)
    y_axis = Axis.of(ys, may_be_log="loss" in name, cut=is_metric)

    def right(x: float) -> float:
        return round(_LEFT + _WIDTH * x_axis.share(x), 1)

    def down(y: float) -> float:
        return round(_TOP + _HEIGHT * (1 - y_axis.share(y)), 1)

    texts: dict[float, str] = {}
    for label, points in curves:
        for x, y in points:
            texts[x] = f"{texts.get(x, f'{across} {x:,.0f}:')} {label} {number(y)}"
    places = sorted((right(x), text) for x, text in texts.items())
    ends = [_LEFT, *((a + b) / 2 for (a, _), (b, _) in itertools.pairwise(places)), _LEFT + _WIDTH]
    return Chart(
        name=name,
        across=across,
        lines=tuple(
            Line(label, tuple(f"{right(x)},{down(y)}" for x, y in points), number(points[-1][1]))
            for label, points in curves
        ),
        x_ticks=tuple((_LEFT + _WIDTH * share, label) for share, label in x_axis.ticks),
        y_ticks=tuple((_TOP + _HEIGHT * (1 - share), label) for share, label in y_axis.ticks),
        note=y_axis.note,
        values=tuple(
            (left, end - left, text)
            for (left, end), (_, text) in zip(itertools.pairwise(ends), places, strict=True)
        ),
    )


def _thinned(points: Points) -> Points:
    """Returns the finite points; of many, one of each stretch, and the last."""
    good = [point for point in points if all(map(math.isfinite, point)) and abs(point[1]) < 1e300]
    every = -(-len(good) // _MOST_POINTS) or 1
    return good[::every] + (good[-1:] if (len(good) - 1) % every else [])


def render(template: str, **values: Any) -> str:
    """Returns a template of this package with escaped values in it."""
    return html_templates(__package__).get_template(template).render(**values)


def run_sections(request: TrainingRequest, progress: Progress) -> str:
    """Returns the section of a report about its run, as HTML; empty if nothing is known of it."""
    run_dir = request.model_run_dir
    if not progress.phase:
        return ""
    view = view_of(progress, run_dir, scalars_by_step(run_dir))
    values = hyperparameter_values(request.hyperparameters)
    facts = [
        ("Begun", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(progress.started_s))),
        ("Module", f"{request.user_code.module}.{request.user_code.function}"),
        ("Keras", f"{keras_version()} ({keras_module().__name__})"),
        ("Hyperparameters", ", ".join(f"{name}={value}" for name, value in values.items())),
    ]
    facts = [(label, value) for label, value in facts if value]
    view = dataclasses.replace(view, facts=facts + view.facts)
    return render("sections.html", view=view)


def run_view(run_dir: str) -> str:
    """Returns a ModelRun for a notebook: its report or live page, and the end of the log.

    The page is in a frame, with its own style and without scripts.
    """
    page = _first_text(run_dir, REPORT_FILE, LIVE_FILE)
    log = _first_text(run_dir, LOG_FILE)
    tail = log and log[-_LOG_TAIL:]
    return render("run.html", run_dir=run_dir, log_file=LOG_FILE, page=page, tail=tail)


def run_of(model_dir: str) -> str:
    """Returns the ModelRun beside a Model: `.../model/7` → `.../model_run/7`."""
    folder, name = os.path.split(model_dir.rstrip("/"))
    return os.path.join(os.path.dirname(folder), "model_run", name)


def _first_text(run_dir: str, *names: str) -> str | None:
    """Returns the text of the first of some files of a run that exists."""
    paths = (os.path.join(run_dir, name) for name in names)
    path = next(filter(gfile().exists, paths), None)
    return None if path is None else read_whole(path).decode(errors="replace")
