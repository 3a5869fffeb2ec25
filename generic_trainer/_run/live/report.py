"""A run in its report: the course of the training."""

import dataclasses
import os
import time
from typing import Any

from generic_trainer._core.event_files import scalars_by_step
from generic_trainer._core.files import gfile, read_whole
from generic_trainer._core.keras import keras_module, keras_version
from generic_trainer._core.progress import ProgressReader
from generic_trainer._run.live.view import view_of
from generic_trainer.launchers import TrainingRequest
from generic_trainer.validation import html_templates

LIVE_FILE, REPORT_FILE, LOG_FILE = "live.html", "report.html", "training.log"
_LOG_TAIL = 20_000  # characters


def render(template: str, **values: Any) -> str:
    """Returns a template of this package with escaped values in it."""
    return html_templates(__package__).get_template(template).render(**values)


def run_sections(request: TrainingRequest) -> str:
    """Returns the section of a report about its run, as HTML; empty if nothing is known of it."""
    run_dir = request.model_run_dir
    progress = ProgressReader(run_dir).look()
    if not progress.phase:
        return ""
    view = view_of(progress, run_dir, scalars_by_step(run_dir))
    values = (request.hyperparameters or {}).get("values", request.hyperparameters or {})
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
    page, log = _first_text(run_dir, REPORT_FILE, LIVE_FILE), _first_text(run_dir, LOG_FILE)
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
