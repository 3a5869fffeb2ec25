"""The thread that shows how a run is, for as long as the run takes.

It takes no more than 1/300 of a processor: after each look it rests so much longer than that took.
What cannot be shown (a disk that is full, an output that is closed) is not shown.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
import time
from collections.abc import Iterator
from typing import Protocol

from generic_trainer._core.files import is_remote
from generic_trainer._core.progress import Progress, ProgressReader, note, recording
from generic_trainer._run.live.page import LivePage, scalars_reader
from generic_trainer._run.live.terminal import PlainLines, StatusLine
from generic_trainer._run.live.view import View, view_of

_EVERY_S = 1.0
_REMOTE_EVERY_S = 15.0
_REST = 300  # times as long as a look takes

_logger = logging.getLogger(__name__)


class _Surface(Protocol):
    def show(self, view: View, progress: Progress) -> None: ...


class LiveRun:
    """Shows a run from its beginning to its end.

    ::

        with LiveRun(model_run_dir) as live:
            note(phase="checks")
            ...
    """

    def __init__(self, run_dir: str) -> None:
        """Looks for what there is to show it on: a notebook, a terminal, or a log.

        Args:
            run_dir: of the ModelRun artifact.
        """
        self._run_dir = run_dir
        self._reader, self._scalars = ProgressReader(run_dir), scalars_reader(run_dir)
        self._over = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> LiveRun:
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(recording(self._run_dir, "run"))
        note(phase="preparing")
        self._surfaces: list[_Surface] = [LivePage(self._run_dir)]
        self._line: StatusLine | None = None
        with contextlib.suppress(Exception):
            self._surfaces.append(self._people_see())
        # A notebook knows by the context which cell something belongs to.
        self._thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._watch,), name="live", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._over.set()
        self._thread.join()
        if error is None:
            note(phase="published")
        else:
            note(phase="failed", error=f"{type(error).__name__}: {error}")
        self.show()
        self._stack.close()

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Shows the line of a terminal inside, where `kept_output` leads the output around it."""
        if self._line is None:
            yield
            return
        with self._line.shown():
            yield

    def show(self) -> None:
        """Shows how the run is now, wherever that can be shown."""
        with contextlib.suppress(Exception), self._lock:
            progress = self._reader.look()
            view = view_of(progress, self._run_dir, self._scalars())
            for surface in self._surfaces:
                with contextlib.suppress(Exception):
                    surface.show(view, progress)

    def _people_see(self) -> _Surface:
        from generic_trainer._run.live.notebook import Cell

        if Cell.is_possible():
            return Cell(self._run_dir)
        if not StatusLine.is_possible():
            return PlainLines()
        self._line = self._stack.enter_context(contextlib.closing(StatusLine()))
        return self._line

    def _watch(self) -> None:
        every_s = _REMOTE_EVERY_S if is_remote(self._run_dir) else _EVERY_S
        rest_s = every_s
        while not self._over.wait(rest_s):
            start_s = time.thread_time()
            self.show()
            rest_s = max(every_s, _REST * (time.thread_time() - start_s))
