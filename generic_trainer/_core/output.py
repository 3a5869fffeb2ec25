"""Output of `run_fn`: shown live, each line at its level, and kept in a file.

While training runs, the file descriptors 1 and 2 are files, from which a small process copies
(`output_copier`). This also catches output that bypasses Python (`tf.print`, TensorFlow's C++ log,
child processes), never blocks a writer, and ends with the run: processes that `run_fn` leaves
behind write on into a file. The copier is a process because a thread would lose the last line
before a crash, and could not show anything while C++ code holds the GIL.
"""

import contextlib
import io
import logging
import os
import re
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from generic_trainer._core import output_copier
from generic_trainer._core.files import gfile, is_remote
from generic_trainer._core.output_copier import Stream
from generic_trainer._core.scratch import ScratchFolder, held

# These loggers attach handlers of their own that write everything to stderr.
_LOGGERS_WITH_HANDLERS = ("", "absl", "tensorflow")
_FORMAT = "%(levelname).1s %(asctime)s %(name)s: %(message)s"
# Libraries whose progress messages no user of a trainer can act on; their warnings are shown.
_QUIET = re.compile(
    "/site-packages/(apache_beam|tensorflow/python/saved_model|tensorflow_model_analysis|"
    "tensorflow_transform|tfx|tfx_bsl)/"
)
_STDERR_NAMES = ("<stderr>", "stderr")  # Python's own, a notebook's
_STANDARD = (1, 2)
# If the copying process has not copied anything for so long, it counts as stuck.
_STUCK_S = 5.0

_logger = logging.getLogger(__name__)

# The file descriptors belong to the process, so `kept_output` serves one thread at a time.
_process_lock = threading.RLock()
# The input of the copying process, while there is one.
_orders: list[int] = []
_orders_lock = threading.Lock()


@contextlib.contextmanager
def kept_output(path: str) -> Iterator[None]:
    """Keeps all output of this process and its children in a file, and still shows it.

    1. Log records below WARNING go to stdout and the rest to stderr, so that systems that show a
       container's stderr as errors do not show progress as errors.
    2. INFO is shown unless the program has chosen a level other than Python's default, or it comes
       from one of the libraries in `_QUIET`.
    3. A remote file is written at the end, from a local copy. If that fails, it is only logged.
    4. A second thread waits until the first has left.
    5. A program that opens /dev/stdout again, as `> /dev/stdout` in a shell does, empties a file:
       output of the last moment before may be lost. `>&1` and `>> /dev/stdout` do not.
    6. The traceback of an error that leaves the block is added to the file, but not shown.
    7. If the copying process is killed, the part that it was copying may be kept twice.

    Args:
        path: the file; output is appended to its content.
    """
    with contextlib.ExitStack() as stack:
        wait = "The run that logs to %s waits for the run of another thread."
        stack.enter_context(held(_process_lock, lambda: _logger.warning(wait, path)))
        local = stack.enter_context(_local_file(path))
        stack.enter_context(_traceback_in(local))
        stack.enter_context(_copied_descriptors(local))
        for stream, redirected, descriptor in (
            (sys.stdout, contextlib.redirect_stdout, 1),
            (sys.stderr, contextlib.redirect_stderr, 2),
        ):
            _show_lines_at_once(stream)
            # A stream that does not write to its file descriptor, as in a notebook.
            if stream is not None and _descriptor(stream) != descriptor:
                kept = stack.enter_context(open(local, "a", 1, encoding="utf-8", errors="replace"))
                stack.enter_context(redirected(Tee(stream, kept)))
        stack.enter_context(_levels_apart())
        yield


def show_status(text: str) -> None:
    """Shows a line below the output that is kept, if it is shown on a terminal; never waits."""
    line = " ".join(text.split()).encode("ascii", "replace") + b"\n"
    with contextlib.suppress(OSError), _orders_lock:  # the copying process is stuck or dead
        for order in _orders:
            os.write(order, line)


@contextlib.contextmanager
def _traceback_in(path: str) -> Iterator[None]:
    try:
        yield
    except Exception:
        with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as file:
            traceback.print_exc(file=file)
        raise


@contextlib.contextmanager
def shown_output() -> Iterator[None]:
    """Shows each line at once and each log record on the stream of its level.

    For processes whose output is kept by another process.
    """
    for stream in (sys.stdout, sys.stderr):
        _show_lines_at_once(stream)
    with _levels_apart():
        yield


@contextlib.contextmanager
def _local_file(path: str) -> Iterator[str]:
    if not is_remote(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        yield path
        return
    with ScratchFolder("log-") as directory:
        local = os.path.join(directory, os.path.basename(path))
        try:
            yield local
        finally:
            try:
                gfile().copy(local, path, overwrite=True)
            except Exception as error:  # its type depends on the file system
                _logger.warning("The log of the run could not be copied to %s: %s", path, error)


@contextlib.contextmanager
def _copied_descriptors(path: str) -> Iterator[None]:
    """Shows output to the descriptors 1 and 2, and keeps it in a local file."""
    with contextlib.ExitStack() as stack:
        kept = stack.enter_context(open(path, "ab", buffering=0)).fileno()
        with ScratchFolder("output-") as folder:  # open files outlive it, without a name
            names = [os.path.join(folder, str(descriptor)) for descriptor in _STANDARD]
            sinks = [stack.enter_context(open(name, "ab", buffering=0)) for name in names]
            copied = [stack.enter_context(open(name, "r+b", buffering=0)) for name in names]
        sources = [source.fileno() for source in copied]
        originals = [os.dup(descriptor) for descriptor in _STANDARD]
        read_end, write_end = os.pipe()
        for descriptor in (*originals, write_end):
            stack.callback(os.close, descriptor)
        with open(read_end, "rb") as orders:
            copier = subprocess.Popen(
                [sys.executable, "-I", "-S", output_copier.__file__]
                + [str(number) for number in (os.getpid(), kept, *sources)],
                stdin=orders,
                pass_fds=[kept, *sources],
                start_new_session=True,  # Ctrl-C is for the training, whose last words count
            )
        flush()
        for sink, descriptor in zip(sinks, _STANDARD, strict=True):
            os.dup2(sink.fileno(), descriptor)
        os.set_blocking(write_end, False)
        _orders.append(write_end)
        try:
            yield
        finally:
            with _orders_lock:
                _orders.remove(write_end)
            flush()
            for original, descriptor in zip(originals, _STANDARD, strict=True):
                os.dup2(original, descriptor)
            with contextlib.suppress(OSError):
                os.write(write_end, output_copier.END)
            _finish(copier, kept, sources, originals)


def _finish(
    copier: subprocess.Popen[bytes], kept: int, sources: Sequence[int], shown: Sequence[int]
) -> None:
    """Waits for the copier; copies the rest itself if the copier was killed or is stuck."""
    before: list[int] = []
    is_stuck = False  # it was stopped, or the reader of its output does not read
    while copier.returncode is None:
        now = [Stream(source, kept=kept, shown=None).position for source in sources]
        if is_stuck := now == before:
            copier.kill()
        before = now
        with contextlib.suppress(subprocess.TimeoutExpired):
            copier.wait(_STUCK_S)
    if copier.returncode != 0:
        for source, target in zip(sources, shown, strict=True):
            Stream(source, kept=kept, shown=None if is_stuck else target).copy()


def flush() -> None:
    """Writes the buffered text of standard output and error."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # it is None, closed, or of a class of the user's
            stream.flush()


def _show_lines_at_once(stream: Any) -> None:
    """Has a stream flushed after each line, also without a terminal, as in a container."""
    if isinstance(stream, io.TextIOWrapper) and not stream.closed:
        stream.reconfigure(line_buffering=True)


class Tee(io.TextIOBase):
    """A text stream that writes to another stream and to a file."""

    def __init__(self, shown: TextIO, kept: TextIO | io.TextIOBase) -> None:
        """Takes the two, which it does not close."""
        self._shown = shown
        self._kept = kept

    def write(self, text: str) -> int:
        self._kept.write(text)
        return self._shown.write(text)

    def flush(self) -> None:
        self._kept.flush()
        self._shown.flush()

    def close(self) -> None:
        """Leaves both streams open: other objects own them, and Python calls this on collection."""

    def isatty(self) -> bool:
        return self._shown.isatty()

    def fileno(self) -> int:
        return self._shown.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._shown.encoding

    def __getattr__(self, name: str) -> Any:  # a notebook's own extras
        return getattr(self._shown, name)


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None


@contextlib.contextmanager
def _levels_apart() -> Iterator[None]:
    """Shows each log record on the stream of its level."""
    with contextlib.ExitStack() as stack:
        for logger in map(logging.getLogger, _LOGGERS_WITH_HANDLERS):
            stack.callback(logger.setLevel, logger.level)
            if logger.level == logging.WARNING:
                logger.setLevel(logging.INFO)
            # From the last one, because they come back in the reverse order.
            for handler in reversed([*filter(_writes_to_stderr, logger.handlers)]):
                logger.removeHandler(handler)
                stack.callback(logger.addHandler, handler)
        progress, problems = map(logging.StreamHandler, (sys.stdout, sys.stderr))
        progress.addFilter(_is_progress)
        problems.setLevel(logging.WARNING)
        root = logging.getLogger()
        for shown in (progress, problems):
            shown.setFormatter(logging.Formatter(_FORMAT))
            shown.addFilter(_is_open(shown.stream))
            root.addHandler(shown)
            stack.callback(root.removeHandler, shown)
        yield


def _writes_to_stderr(handler: logging.Handler) -> bool:
    handler = getattr(handler, "python_handler", handler)  # absl wraps its own
    # Not by identity: a handler keeps the stream that was stderr when it was made.
    return getattr(getattr(handler, "stream", None), "name", None) in _STDERR_NAMES


def _is_progress(record: logging.LogRecord) -> bool:
    return record.levelno < logging.WARNING and not _QUIET.search(record.pathname)


def _is_open(stream: Any) -> Callable[[logging.LogRecord], bool]:
    """Returns a filter that drops records if `run_fn` has closed the stream."""
    return lambda record: not getattr(stream, "closed", False)
