"""A run on a terminal: one line below its output that moves; elsewhere a line now and then."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator

from generic_trainer._core.progress import Progress
from generic_trainer._run.live.view import View

_LEAST_S, _SHARE = 10.0, 0.1  # between two plain lines: seconds, and share of the time so far
_MOST_METRICS = 3
_FULL, _EMPTY, _BLOCKS = "━", "─", 20
# The line below the cursor, in one write: with room made below, the cursor comes back to where it
# was, in the middle of a line or not. ECMA-48 and DEC's save and restore.
_BELOW = "\x1bD\x1b[A\x1b7\x1b[B\r\x1b[2K{}\x1b8"
_ERASE = "\x1b[J"

_logger = logging.getLogger(__name__)


class PlainLines:
    """A line of the log every ten seconds, and more rarely the longer the run takes."""

    def __init__(self) -> None:
        self._start_s = self._said_s = time.monotonic()

    def show(self, view: View, progress: Progress) -> None:
        """Says how far the training is, where it is time to."""
        now_s = time.monotonic()
        due_s = self._said_s + max(_LEAST_S, _SHARE * (now_s - self._start_s))
        if progress.phase == "training" and now_s > due_s and len(view.tiles) > 1:
            self._said_s = now_s
            _logger.info("%s", text_of(view))


class StatusLine:
    """The last line of a terminal, below what `kept_output` shows there.

    Its copying process erases what is below before it writes, so that this needs no turn.
    """

    def __init__(self) -> None:
        self._terminal = os.dup(1)  # which is led elsewhere during the training
        self._lock = threading.Lock()
        self._is_shown = False

    @staticmethod
    def is_possible() -> bool:
        """Whether there is a terminal that can do it."""
        return os.isatty(1) and os.environ.get("TERM", "dumb") != "dumb"

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Shows the line inside, and leaves nothing of it."""
        self._is_shown = True
        try:
            yield
        finally:
            with self._lock, contextlib.suppress(OSError):
                self._is_shown = False
                os.write(self._terminal, _ERASE.encode())

    def show(self, view: View, progress: Progress) -> None:
        """Draws the line anew."""
        width = shutil.get_terminal_size().columns - 1
        line = _BELOW.format(_drawn(view, width)).encode()
        with self._lock:
            if self._is_shown:
                os.write(self._terminal, line)

    def close(self) -> None:
        """Leaves the terminal alone."""
        os.close(self._terminal)


def text_of(view: View) -> str:
    """Returns a run as a line of text: "Training: step 20 of 100, 340 examples/s, loss 0.3"."""
    return f"{view.headline}: {', '.join(_parts(view))}"


def _parts(view: View) -> list[str]:
    before = {"step", "epoch", "left", "restarts"}
    words = {"so far": "for", "took": "for"}
    tiles = [
        f"{words.get(label, label)} {value}" if label in before or label in words
        else f"{value} {label}"
        for label, value in view.tiles
    ]  # fmt: skip
    losses = [
        f"{chart.name} {line.last}"
        for chart in view.charts[:_MOST_METRICS]
        for line in chart.lines[:1]
        if chart.until.startswith("step")
    ]
    share = [] if view.share is None else [f"{view.share:.0%}"]
    return [*share, *tiles[:2], *losses, *tiles[2:]]


def _drawn(view: View, width: int) -> str:
    """Returns the line for a terminal of a width in columns, coloured and cut to fit."""
    from rich.console import Console
    from rich.text import Text

    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{view.headline} ", "bold")
    if view.share is not None:
        done = round(view.share * _BLOCKS)
        line.append(_FULL * done, "green").append(f"{_EMPTY * (_BLOCKS - done)} ", "dim")
    # A metric's name is the user's: it must not move the cursor.
    line.append("".join(c if c.isprintable() else "?" for c in " · ".join(_parts(view))))
    line.truncate(width, overflow="ellipsis")
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=width, color_system="standard").print(line, end="")
    return out.getvalue().replace("\n", "")
