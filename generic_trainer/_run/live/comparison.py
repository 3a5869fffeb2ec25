"""The metrics of a run beside those of the model that it started from, and of the one before it."""

from __future__ import annotations

import dataclasses
import os

from generic_trainer._core.files import gfile, read_whole
from generic_trainer._core.progress import metrics_by_step
from generic_trainer._core.tfx_names import SERVING_MODEL_DIR
from generic_trainer.launchers import TrainingRequest
from generic_trainer.validation import ValidationReport

_REPORT_FILE = "report.json"
_FACTS = (("size in bytes", "size_bytes"), ("latency in ms", "latency_ms"))
_UNKNOWN = "-"


@dataclasses.dataclass(frozen=True)
class ComparedModels:
    """A table: names of models, and rows of what is compared with a value for each of them."""

    names: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


def compared_models(request: TrainingRequest, report: ValidationReport) -> ComparedModels | None:
    """Returns the last metrics of a run beside those of the models known; None if there is none.

    What is known lies beside the models: a base model that no run of this package has trained has
    no metrics here.

    Args:
        request: the run.
        report: on the model that it has exported.
    """
    runs = {"this run": request.model_run_dir}
    if request.base_model:
        runs["base model"] = run_of(os.path.dirname(request.base_model.rstrip("/")))
    previous = _published_before(request.model_dir)
    if previous and run_of(previous) not in runs.values():
        runs["published before"] = run_of(previous)
    found = {name: _values(run_dir) for name, run_dir in runs.items()}
    found["this run"] |= _facts(report)
    others = [values for name, values in found.items() if name != "this run" and values]
    if not others:
        return None
    rows = [
        (what, tuple(_number(values[what]) if what in values else _UNKNOWN
                     for values in found.values()))
        for what in found["this run"]
        if any(what in values for values in others)
    ]  # fmt: skip
    return ComparedModels(tuple(found), tuple(rows)) if rows else None


def run_of(model_dir: str) -> str:
    """Returns the ModelRun beside a Model: `.../model/7` → `.../model_run/7`."""
    folder, number = os.path.split(model_dir.rstrip("/"))
    return os.path.join(os.path.dirname(folder), "model_run", number)


def _published_before(model_dir: str) -> str | None:
    """Returns the newest Model of the node, before this one, that was published."""
    folder, own = os.path.split(model_dir.rstrip("/"))
    if not own.isdecimal() or not gfile().isdir(folder):
        return None
    numbers = [int(n) for n in (n.rstrip("/") for n in gfile().listdir(folder)) if n.isdecimal()]
    for number in sorted((n for n in numbers if n < int(own)), reverse=True):
        model = os.path.join(folder, str(number))
        if gfile().exists(os.path.join(model, SERVING_MODEL_DIR)):
            return model
    return None


def _values(run_dir: str) -> dict[str, float]:
    if not gfile().isdir(run_dir):
        return {}
    values = {name: points[-1][1] for name, points in metrics_by_step(run_dir).items()}
    path = os.path.join(run_dir, _REPORT_FILE)
    if gfile().exists(path):
        values |= _facts(ValidationReport.from_json(read_whole(path).decode()))
    return values


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"


def _facts(report: ValidationReport) -> dict[str, float]:
    return {label: report.facts[name] for label, name in _FACTS if name in report.facts}
