"""The thread that shows a run for as long as the run takes.

It looks once a second. Views that cannot be written (full disk, closed output) are skipped: they
never fail a run.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Iterator

from generic_trainer._core.event_files import ScalarReader
from generic_trainer._core.files import is_remote
from generic_trainer._core.progress import Progress, ProgressReader, note, recording
from generic_trainer._run.live.surfaces import (
    LogLines,
    NotebookCell,
    in_notebook,
    write_live_page,
)
from generic_trainer._run.live.view import View, view_of

_EVERY_S, _REMOTE_EVERY_S = 1.0, 15.0
# A look at a long run with many curves takes longer: rest so many times as long, in CPU seconds.
_REST = 50


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
    reader, scalars = ProgressReader(run_dir), ScalarReader(run_dir)
    surfaces: list[Callable[[View, Progress], None]] = [
        write_live_page,
        NotebookCell() if in_notebook() else LogLines(),
    ]
    over, lock = threading.Event(), threading.Lock()

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
