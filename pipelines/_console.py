"""A console that shows one line per pipeline stage and keeps everything else in a log file."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
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
    what is led aside; `sys.stdout` alone would catch a fraction.
    """

    def __init__(self, terminal: TextIO, descriptors: tuple[int, int], log_file: int) -> None:
        """Leads the output aside.

        Args:
            terminal: Where the stages are shown.
            descriptors: Copies of the original file descriptors 1 and 2.
            log_file: File descriptor of the log.
        """
        self._terminal = terminal
        self._descriptors = descriptors
        self._log_file = log_file
        self._open_line: str | None = None
        self._started_s: dict[str, float] = {}
        self._cached: set[str] = set()

    def start(self, stage: str) -> None:
        """Shows that `stage` runs now."""
        self._started_s[stage] = time.monotonic()
        if self._open_line:
            self._write("\n")
        self._write(f"  {stage:<22}")
        self._open_line = stage
        if stage in TALKATIVE_STAGES:
            self._write("\n")
            self._open_line = None
            self.lead_to(*self._descriptors)

    def note_cached(self) -> None:
        """Shows the running stage as taken from the cache when it finishes."""
        if self._open_line:
            self._cached.add(self._open_line)
        else:
            self._cached.update(self._started_s.keys() & set(TALKATIVE_STAGES))

    def finish(self, stage: str) -> None:
        """Shows how long `stage` took."""
        self.lead_to(self._log_file, self._log_file)
        took_s = time.monotonic() - self._started_s.pop(stage, time.monotonic())
        if self._open_line != stage:
            self._write(f"  {stage:<22}")
        self._write("  cached\n" if stage in self._cached else f"{took_s:6.1f} s\n")
        self._cached.discard(stage)
        self._open_line = None

    def close(self) -> None:
        """Gives the output back."""
        self.lead_to(*self._descriptors)
        if self._open_line:
            self._write("\n")
            self._open_line = None

    def lead_to(self, stdout: int, stderr: int) -> None:
        """Makes file descriptors 1 and 2 copies of the given ones."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)

    def _write(self, text: str) -> None:
        self._terminal.write(text)
        self._terminal.flush()


@contextlib.contextmanager
def stage_console(log_path: Path) -> Iterator[StageConsole]:
    """Shows stages only, until the end of the `with` block.

    Enter it before TensorFlow is imported: its C++ code reads its log level once.

    Args:
        log_path: Everything else is appended here.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        descriptors = (os.dup(1), os.dup(2))
        for descriptor in descriptors:
            stack.callback(os.close, descriptor)
        log = stack.enter_context(log_path.open("a"))
        terminal = stack.enter_context(os.fdopen(os.dup(1), "w"))
        # A test runner or notebook has streams of its own that are not descriptors 1 and 2.
        for redirect, descriptor in ((redirect_stdout, 1), (redirect_stderr, 2)):
            stream = stack.enter_context(open(descriptor, "w", buffering=1, closefd=False))
            stack.enter_context(redirect(stream))
        console = StageConsole(terminal, descriptors, log.fileno())
        stack.enter_context(_logging_to(log, console))
        console.lead_to(log.fileno(), log.fileno())
        stack.callback(console.close)
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
