"""The places that show a run: a page, log lines, the cell of a notebook."""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

from generic_trainer._core.files import gfile, write_whole
from generic_trainer._core.progress import Progress
from generic_trainer._run.live.report import LIVE_FILE, REPORT_FILE, render, run_view
from generic_trainer._run.live.view import View

_REFRESH_S = 3  # of the page
_LEAST_S, _SHARE = 10.0, 0.1  # between two log lines: seconds, and share of the time so far
_MOST_METRICS = 3

_logger = logging.getLogger(__name__)


def write_live_page(view: View, progress: Progress) -> None:
    """Writes `live.html`; it reloads itself while the run goes on, and ends at the report."""
    refresh = {"published": f"0; url={REPORT_FILE}", "failed": None}
    page = render("live.html", view=view, refresh=refresh.get(progress.phase, str(_REFRESH_S)))
    gfile().makedirs(view.run_dir)
    write_whole(os.path.join(view.run_dir, LIVE_FILE), page)


class LogLines:
    """A line in the log at the first step, then every ten seconds, less often in long runs."""

    def __init__(self) -> None:
        self._start_s, self._due_s = time.monotonic(), 0.0

    def __call__(self, view: View, progress: Progress) -> None:
        """Logs a line if it is due."""
        now_s = time.monotonic()
        if progress.phase in ("training", "validating") and now_s > self._due_s and view.tiles[1:]:
            self._due_s = now_s + max(_LEAST_S, _SHARE * (now_s - self._start_s))
            _logger.info("%s", text_of(view))


class NotebookCell:
    """The output of the cell that runs the component; at the end the report replaces it."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __call__(self, view: View, progress: Progress) -> None:
        """Shows the run in the same place as before."""
        from IPython.display import HTML, display

        page = render("cell.html", view=view)
        if progress.phase == "published":
            page += run_view(view.run_dir)
        elif progress.phase == "failed":
            page += f"The files of the run are in {os.path.basename(view.run_dir)}.failed"
        if self._handle is None:
            self._handle = display(HTML(page), display_id=True)
        else:
            self._handle.update(HTML(page))


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def text_of(view: View) -> str:
    """Returns a run as a line of text: "Training: step 20 of 100, examples/s 340, loss 0.3"."""
    losses = [
        (chart.name, line.last)
        for chart in view.charts[:_MOST_METRICS]
        for line in chart.lines[:1]
        if chart.until.startswith("step")
    ]
    parts = (f"{label} {value}" for label, value in view.tiles + losses)
    return f"{view.headline}: {', '.join(parts)}"
