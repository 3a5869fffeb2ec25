"""A run in its report: the course of the training."""

from __future__ import annotations

import dataclasses
import functools
import html
import os
import time
from typing import Any

from generic_trainer._core.event_files import scalars_by_step
from generic_trainer._core.files import gfile, read_whole
from generic_trainer._core.keras import keras_module, keras_version
from generic_trainer._core.progress import ProgressReader
from generic_trainer._run.live.view import view_of
from generic_trainer.launchers import TrainingRequest

LIVE_FILE, REPORT_FILE, LOG_FILE = "live.html", "report.html", "training.log"
_LOG_TAIL_BYTES = 20_000
_FRAME_PX = 640


def render(template: str, **values: Any) -> str:
    """Returns a template of this package with escaped values in it."""
    return str(_environment().get_template(template).render(**values))


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
    pages = (os.path.join(run_dir, name) for name in (REPORT_FILE, LIVE_FILE))
    page = next(filter(gfile().exists, pages), None)
    shown = []
    if page is not None:
        inside = html.escape(read_whole(page).decode())
        style = f"width: 100%; height: {_FRAME_PX}px; border: 1px solid #8884"
        shown.append(f'<iframe sandbox srcdoc="{inside}" style="{style}"></iframe>')
    log = os.path.join(run_dir, LOG_FILE)
    if gfile().exists(log):
        tail = read_whole(log)[-_LOG_TAIL_BYTES:].decode(errors="replace")
        shown.append(
            f"<details><summary>The end of {html.escape(log)}</summary>"
            f'<pre style="white-space: pre-wrap">{html.escape(tail)}</pre></details>'
        )
    return "\n".join(shown) or f"{html.escape(run_dir)} has neither a report nor a log."


def run_of(model_dir: str) -> str:
    """Returns the ModelRun beside a Model: `.../model/7` → `.../model_run/7`."""
    folder, name = os.path.split(model_dir.rstrip("/"))
    return os.path.join(os.path.dirname(folder), "model_run", name)


@functools.cache
def _environment() -> Any:
    import jinja2

    packages = (__package__, "generic_trainer.validation")  # the latter has the style of all pages
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(name, "templates") for name in packages]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
