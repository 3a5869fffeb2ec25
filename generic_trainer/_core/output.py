"""Output of `run_fn`: shown live, each line at its level, and kept in a file.

The file descriptors 1 and 2 are led through `tee(1)` while training runs. That catches what Python
cannot see (`tf.print`, TensorFlow's C++ log, child processes), holds on to the last line before a
crash, and needs no thread, which could be starved by C++ code that writes with the GIL held.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO

from generic_trainer._core.files import is_remote
from generic_trainer._core.locks import held
from generic_trainer._core.scratch import ScratchFolder

# These loggers attach handlers of their own that write everything to stderr.
_LOGGERS_WITH_HANDLERS = ("", "absl", "tensorflow")
_FORMAT = "%(levelname).1s %(asctime)s %(name)s: %(message)s"
_STDERR_NAMES = ("<stderr>", "stderr")  # Python's own, a notebook's
_TEE_EXIT_TIMEOUT_S = 2.0

_logger = logging.getLogger(__name__)

# The file descriptors belong to the process, so one thread at a time has its output kept.
_process_lock = threading.RLock()
# Those that have outlived their run, until they are found to have ended.
_tees_still_running: list[subprocess.Popen[bytes]] = []


@contextlib.contextmanager
def kept_output(path: str) -> Iterator[None]:
    """Keeps all output of this process and its children in a file, and still shows it.

    1. Log records below WARNING go to stdout and the rest to stderr: where a container's stderr is
       shown as errors, progress is not.
    2. INFO is shown unless the program has chosen a level other than Python's default.
    3. A remote file is written at the end, from a local copy.
    4. A second thread waits until the first has left.

    Args:
        path: the file; what it holds already is kept.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(held(_process_lock, lambda: _tell_of_waiting(path)))
        _tees_still_running[:] = [tee for tee in _tees_still_running if tee.poll() is None]
        local = stack.enter_context(_local_file(path))
        for descriptor in (1, 2):
            stack.enter_context(_teed_descriptor(descriptor, local))
        for name in ("stdout", "stderr"):
            stack.enter_context(_line_buffered(name))
            stack.enter_context(_teed_stream(name, local))
        stack.enter_context(_levels_apart())
        yield


@contextlib.contextmanager
def shown_output() -> Iterator[None]:
    """Shows each line at once and each log record on the stream of its level.

    For a process whose output another one keeps.
    """
    with _line_buffered("stdout"), _line_buffered("stderr"), _levels_apart():
        yield


def _tell_of_waiting(path: str) -> None:
    _logger.warning("The run that logs to %s waits for the run of another thread.", path)


@contextlib.contextmanager
def _local_file(path: str) -> Iterator[str]:
    if not is_remote(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        yield path
        return
    import tensorflow as tf

    with ScratchFolder("log-") as directory:
        local = os.path.join(directory, os.path.basename(path))
        try:
            yield local
        finally:
            tf.io.gfile.copy(local, path, overwrite=True)


@contextlib.contextmanager
def _teed_descriptor(descriptor: int, path: str) -> Iterator[None]:
    original = os.dup(descriptor)
    try:
        read_end, write_end = os.pipe()
        with open(read_end, "rb") as source, open(write_end, "wb") as sink:
            # -i: Ctrl-C is for the training, whose last words must still be written.
            tee = subprocess.Popen(
                ["tee", "-i", "-a", path], stdin=source, stdout=original, stderr=original
            )
            _flush()
            os.dup2(sink.fileno(), descriptor)
        try:
            yield
        finally:
            _flush()
            os.dup2(original, descriptor)
            try:
                tee.wait(_TEE_EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                # A process that `run_fn` left behind may hold the pipe open; it keeps its tee.
                _tees_still_running.append(tee)
    finally:
        os.close(original)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # None or closed
            stream.flush()


@contextlib.contextmanager
def _line_buffered(name: str) -> Iterator[None]:
    """Shows each line when it is printed, also where no terminal is, as in a container."""
    stream = getattr(sys, name)
    if not isinstance(stream, io.TextIOWrapper) or stream.line_buffering:
        yield
        return
    stream.reconfigure(line_buffering=True)
    try:
        yield
    finally:
        stream.reconfigure(line_buffering=False)


class _Tee(io.TextIOBase):
    """A text stream that shows what is written to it and keeps it in a file."""

    def __init__(self, shown: TextIO, kept: TextIO) -> None:
        self._shown = shown
        self._kept = kept

    def write(self, text: str) -> int:
        self._kept.write(text)
        return self._shown.write(text)

    def flush(self) -> None:
        self._kept.flush()
        self._shown.flush()

    def close(self) -> None:
        """Closes neither stream: both are others', and Python calls this on what it collects."""

    def __getattr__(self, name: str) -> Any:  # `isatty`, `encoding`, a notebook's own extras
        return getattr(self._shown, name)


@contextlib.contextmanager
def _teed_stream(name: str, path: str) -> Iterator[None]:
    """Keeps what a stream shows that is not the file descriptor of its name, as in a notebook."""
    stream = getattr(sys, name)
    if stream is None or _descriptor(stream) == {"stdout": 1, "stderr": 2}[name]:
        yield
        return
    with open(path, "a", encoding="utf-8", errors="replace", buffering=1) as kept:
        setattr(sys, name, _Tee(stream, kept))
        try:
            yield
        finally:
            setattr(sys, name, stream)


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None


@contextlib.contextmanager
def _levels_apart() -> Iterator[None]:
    """Shows each log record on the stream of its level."""
    root = logging.getLogger()
    levels_before = {name: logging.getLogger(name).level for name in _LOGGERS_WITH_HANDLERS}
    set_aside = [
        (logger, handler)
        for logger in map(logging.getLogger, _LOGGERS_WITH_HANDLERS)
        for handler in logger.handlers
        if _writes_to_stderr(handler)
    ]
    for logger, handler in set_aside:
        logger.removeHandler(handler)
    handlers = _stream_handlers()
    for handler in handlers:
        root.addHandler(handler)
    for name, level in levels_before.items():
        if level == logging.WARNING:
            logging.getLogger(name).setLevel(logging.INFO)
    try:
        yield
    finally:
        for handler in handlers:
            root.removeHandler(handler)
        for logger, handler in set_aside:
            logger.addHandler(handler)
        for name, level in levels_before.items():
            logging.getLogger(name).setLevel(level)


def _writes_to_stderr(handler: logging.Handler) -> bool:
    handler = getattr(handler, "python_handler", handler)  # absl wraps its own
    # Not by identity: a handler keeps the stream that was stderr when it was made.
    return getattr(getattr(handler, "stream", None), "name", None) in _STDERR_NAMES


def _stream_handlers() -> list[logging.Handler]:
    progress = logging.StreamHandler(sys.stdout)
    progress.addFilter(lambda record: record.levelno < logging.WARNING)
    problems = logging.StreamHandler(sys.stderr)
    problems.setLevel(logging.WARNING)
    for handler in (progress, problems):
        handler.setFormatter(logging.Formatter(_FORMAT))
    return [progress, problems]
