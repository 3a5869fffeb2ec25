"""The pages of a run: `live.html` while it trains, and its part of `report.html` at the end."""

from __future__ import annotations

import contextlib
import functools
import html
import os
from collections.abc import Callable, Mapping
from typing import Any

from generic_trainer._core.event_files import Scalar, ScalarReader, scalars_by_step
from generic_trainer._core.files import gfile, is_remote, read_whole, write_whole
from generic_trainer._core.progress import Points, Progress, ProgressReader
from generic_trainer._run.live.comparison import ComparedModels
from generic_trainer._run.live.view import View, view_of

LIVE_FILE, REPORT_FILE, LOG_FILE = "live.html", "report.html", "training.log"
_REFRESH_S = 3
_LOG_TAIL_BYTES = 20_000
_FRAME_PX = 640


def render(template: str, **values: Any) -> str:
    """Returns a template of this package with values in it, all of them escaped."""
    return str(_environment().get_template(template).render(**values))


def live_page(view: View, *, is_over: bool, report: bool) -> str:
    """Returns a page that needs nothing but itself, and loads itself again while the run goes on.

    Args:
        view: of the run.
        is_over: whether nothing more will come.
        report: whether the report has all of it: then the page leads there.
    """
    refresh = f"0; url={REPORT_FILE}" if report else None if is_over else str(_REFRESH_S)
    return render("live.html", view=view, refresh=refresh, compared=None)


class LivePage:
    """`live.html` of a run."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir

    def show(self, view: View, progress: Progress) -> None:
        """Writes the page anew."""
        has_report = progress.phase == "published"
        page = live_page(view, is_over=progress.phase in ("published", "failed"), report=has_report)
        gfile().makedirs(self._run_dir)
        write_whole(os.path.join(self._run_dir, LIVE_FILE), page)


def run_sections(run_dir: str, compared: ComparedModels | None) -> str:
    """Returns what a report says of the run, as HTML; empty where nothing is known of it.

    Args:
        run_dir: of the ModelRun artifact.
        compared: the metrics of other models beside those of this run.
    """
    progress = ProgressReader(run_dir).look()
    if not progress.phase:
        return ""
    view = view_of(progress, run_dir, scalars_by_step(run_dir))
    return render("sections.html", view=view, compared=compared)


def run_view(run_dir: str) -> str:
    """Returns a ModelRun for a notebook: report, or live page, and the end of the log.

    The page lies in a frame: its style is its own, and nothing in it runs.
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


def scalars_reader(run_dir: str) -> Callable[[], Mapping[str, Points]]:
    """Returns a function that returns the scalars of a run, and reads only what files grow by."""
    reader = ScalarReader(run_dir)
    found: dict[str, dict[float, float]] = {}
    curves: dict[str, Points] = {}

    def read() -> Mapping[str, Points]:
        if is_remote(run_dir):  # too far away to be read again and again
            return {}
        new: list[Scalar] = []
        with contextlib.suppress(Exception):  # a file is damaged: what came before is shown
            new = reader.read()
        for scalar in new:
            found.setdefault(scalar.name, {})[scalar.step] = scalar.value
        curves.update((name, sorted(found[name].items())) for name in {each.name for each in new})
        return curves

    return read


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
