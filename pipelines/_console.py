"""A console that shows one line per pipeline stage and keeps everything else in a log file."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

# The stages whose own output a user wants to see: their training, their search.
TALKATIVE_STAGES = ("GenericTrainer", "Tuner")

_LIBRARY_LOGGERS = ("absl", "tensorflow", "py.warnings")
_STARTED = re.compile(r"(?:Component|node) (\S+) is running\.")
_FINISHED = re.compile(r"(?:Component|node) (\S+) is finished\.")
_CACHED = re.compile(r"A cached execution \d+ is used")


class StageConsole:
    """Writes stage names and durations to the terminal, and all other output to a file.

    TFX, Beam, pip and TensorFlow's C++ code write to the file descriptors 1 and 2, so these are
    led aside as well as `sys.stdout` and `sys.stderr`, which in a notebook are something else.
    """

    def __init__(self, log: TextIO) -> None:
        """Leads the output aside, until `close`.

        Args:
            log: The file, open for appending.
        """
        self._log = log
        self._streams = (sys.stdout, sys.stderr)
        self._descriptors = (os.dup(1), os.dup(2))
        self._open_line: str | None = None
        self._started_s: dict[str, float] = {}
        self._cached: set[str] = set()
        self._hide_output()

    def start(self, stage: str) -> None:
        """Shows that `stage` runs now."""
        if stage in self._started_s:
            return
        self._started_s[stage] = time.monotonic()
        self._end_line()
        self._write(f"  {stage:<22}")
        self._open_line = stage
        if stage in TALKATIVE_STAGES:
            self._end_line()
            self._show_output()

    def note_cached(self) -> None:
        """Notes that the stage started last takes its results from the cache."""
        self._cached.update(list(self._started_s)[-1:])

    def finish(self, stage: str) -> None:
        """Shows how long `stage` took, or that it was cached."""
        if stage not in self._started_s:
            return
        took_s = time.monotonic() - self._started_s.pop(stage)
        self._hide_output()
        if self._open_line != stage:
            self._end_line()
            self._write(f"  {stage:<22}")
        self._write("  cached\n" if stage in self._cached else f"{took_s:6.1f} s\n")
        self._cached.discard(stage)
        self._open_line = None

    def close(self) -> None:
        """Gives the output back."""
        self._end_line()
        self._show_output()
        for descriptor in self._descriptors:
            os.close(descriptor)

    def _end_line(self) -> None:
        if self._open_line:
            self._write("\n")
        self._open_line = None

    def _write(self, text: str) -> None:
        self._show_output()
        sys.stdout.write(text)
        self._hide_output()

    def _show_output(self) -> None:
        self._lead_to(self._streams, self._descriptors)

    def _hide_output(self) -> None:
        self._lead_to((self._log, self._log), (self._log.fileno(), self._log.fileno()))

    def _lead_to(self, streams: tuple[TextIO, TextIO], descriptors: tuple[int, int]) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = streams
        for own, descriptor in zip((1, 2), descriptors, strict=True):
            os.dup2(descriptor, own)


@contextlib.contextmanager
def stage_console(log_path: Path) -> Iterator[StageConsole]:
    """Shows stages only, until the end of the `with` block.

    Enter it before TensorFlow is imported: its C++ code reads its log level once.

    Args:
        log_path: Everything else is appended here.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with (
        log_path.open("a", buffering=1, encoding="utf-8", errors="replace") as log,
        contextlib.closing(StageConsole(log)) as console,
        _logging_to(log, console),
    ):
        try:
            yield console
        except Exception:
            logging.getLogger(__name__).exception("The pipeline failed")
            raise


class _LibraryFilter(logging.Filter):
    """Reads TFX's log lines to know where the orchestrator is: it offers no other hook.

    What libraries say while a talkative stage runs goes to the log file only; what the user's own
    module says passes.
    """

    def __init__(self, console: StageConsole, log: logging.Handler) -> None:
        super().__init__()
        self._console = console
        self._log = log

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if started := _STARTED.match(message):
            self._console.start(started[1])
        elif finished := _FINISHED.match(message):
            self._console.finish(finished[1])
        elif _CACHED.match(message):
            self._console.note_cached()
        origin = message if record.name == "py.warnings" else record.pathname
        is_chatter = record.levelno < logging.ERROR and "site-packages" in origin
        if is_chatter:
            self._log.handle(record)
        return not is_chatter


@contextlib.contextmanager
def _logging_to(log: TextIO, console: StageConsole) -> Iterator[None]:
    from absl import logging as absl_logging

    root = logging.getLogger()
    to_file = logging.StreamHandler(log)
    to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s"))
    library_filter = _LibraryFilter(console, to_file)
    library_loggers = [logging.getLogger(name) for name in _LIBRARY_LOGGERS]
    level_before, handlers_before = root.level, root.handlers
    verbosity_before = absl_logging.get_verbosity()
    root.handlers, root.level = [to_file], logging.INFO
    absl_logging.set_verbosity(absl_logging.INFO)
    for logger in library_loggers:
        logger.addFilter(library_filter)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for logger in library_loggers:
            logger.removeFilter(library_filter)
        absl_logging.set_verbosity(verbosity_before)
        root.handlers, root.level = handlers_before, level_before
