"""A run shown for as long as it takes: in a page, in log lines, in the cell of a notebook.

A thread looks once a second. Views that cannot be written (full disk, closed output) are skipped:
they never fail a run.
"""

import contextlib
import contextvars
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from generic_trainer._core.event_files import ScalarReader
from generic_trainer._core.files import gfile, is_remote, write_whole
from generic_trainer._core.output import show_status
from generic_trainer._core.progress import Progress, ProgressReader, note, recording
from generic_trainer._run.live_view import (
    GOES_ON,
    LIVE_FILE,
    REPORT_FILE,
    View,
    render,
    run_view,
    view_of,
)

_EVERY_S = 1.0
_REMOTE_EVERY_S = 15.0
# A look at a long run with many curves takes longer: rest so many times as long, in CPU seconds.
_REST = 50
_REFRESH_S = 3  # of the page
# Between two log lines: the fewest seconds, and the share of the time so far.
_LEAST_S = 10.0
_SHARE = 0.1
_MOST_METRICS = 3
_BAR = 20  # characters of the bar on a terminal

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def live_run(run_dir: str) -> Iterator[Callable[[], None]]:
    """Shows a run from its beginning to its end, and yields a function that shows its state now.

    ::

        with live_run(model_run_dir):
            note(phase="checks")
            ...

    Args:
        run_dir: directory of the ModelRun artifact.
    """
    reader = ProgressReader(run_dir)
    scalars = ScalarReader(run_dir)
    surfaces: list[Callable[[View, Progress], None]] = [
        write_live_page,
        NotebookCell() if in_notebook() else LogLines(),
    ]
    over = threading.Event()
    lock = threading.Lock()

    def show() -> None:
        with contextlib.suppress(Exception), lock:
            progress = reader.look()
            with contextlib.suppress(Exception):  # a file is damaged: earlier records are shown
                if not is_remote(run_dir):  # reading it again and again takes too long
                    scalars.read()
            curves = {name: sorted(points.items()) for name, points in scalars.curves.items()}
            view = view_of(progress, run_dir, curves)
            for surface in surfaces:
                with contextlib.suppress(Exception):
                    surface(view, progress)

    def watch() -> None:
        show()  # now, because the first look pays for imports
        every_s = rest_s = _REMOTE_EVERY_S if is_remote(run_dir) else _EVERY_S
        while not over.wait(rest_s):
            start_s = time.thread_time()
            show()
            rest_s = max(every_s, _REST * (time.thread_time() - start_s))

    with recording(run_dir, "run"):
        note(phase="preparing")
        # The context tells a notebook which cell the output belongs to.
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(watch,), name="live", daemon=True)
        thread.start()
        end = {"phase": "published"}
        try:
            yield show
        except BaseException as error:
            end = {"phase": "failed", "error": f"{type(error).__name__}: {error}"}
            raise
        finally:
            over.set()
            thread.join()
            note(**end)
            show()


def write_live_page(view: View, progress: Progress) -> None:
    """Writes `live.html`; it reloads itself while the run goes on, and ends at the report."""
    refresh = {"published": f"0; url={REPORT_FILE}", "failed": None}
    page = render("live.html", view=view, refresh=refresh.get(progress.phase, str(_REFRESH_S)))
    gfile().makedirs(view.run_dir)
    write_whole(os.path.join(view.run_dir, LIVE_FILE), page)


class LogLines:
    """Lines in the log: as the first step is traced, after it, and then every ten seconds.

    In long runs they are less frequent. On a terminal, a bar below the output is always current.
    """

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._due_s = 0.0
        self._is_tracing = False

    def __call__(self, view: View, progress: Progress) -> None:
        """Logs a line if it is due."""
        show_status(f"{_bar(view.share)}{text_of(view)}" if progress.phase in GOES_ON else "")
        now_s = time.monotonic()
        is_tracing = ":" in view.headline
        is_due = now_s > self._due_s and view.tiles[1:]
        if progress.phase in GOES_ON and (is_due or is_tracing != self._is_tracing):
            self._is_tracing = is_tracing
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


def _bar(share: float | None) -> str:
    return "" if share is None else f"[{'=' * round(_BAR * share):.<{_BAR}}] {share:.0%} "


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
        if chart.across == "step"
    ]
    parts = (f"{label} {value}" for label, value in view.tiles + losses)
    return f"{view.headline}: {', '.join(parts)}"
