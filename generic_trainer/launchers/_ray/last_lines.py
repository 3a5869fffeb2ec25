"""The last lines of the workers, which Ray shows some time after they were written.

On each node a process of Ray reads what the actors write to their files, and the driver prints the
lines that it gets from there. Nothing says which is the last: an actor's result comes sooner, and
on a busy node much sooner. So a worker ends with a line of its own on each of its two streams, and
the driver disconnects when it has printed these lines.
"""

import collections
import contextlib
import io
import logging
import re
import sys
import threading
from collections.abc import Iterator

from generic_trainer._core.output import Tee

# A word with digits: of lines that are alike Ray shows the first alone, but not of such words.
_END = "end-of-output-of-{task}-in-attempt-{attempt}"
_ANY_END = re.compile(r"end-of-output-of-\S+")
# Ray's processes may wait that long for a processor; if one of them is dead, no line will come.
_LIMIT_S = 60.0

_logger = logging.getLogger(__name__)


def end_output(task: str, attempt: int) -> None:
    """Ends the output of this process, which is the actor of a task."""
    for stream in (sys.stdout, sys.stderr):
        print(_end(task, attempt), file=stream, flush=True)


class LastLines(io.TextIOBase):
    """Looks for the lines with which workers end their output, among those that are printed."""

    def __init__(self) -> None:
        """Expects none."""
        self._expected: set[str] = set()
        self._seen: collections.Counter[str] = collections.Counter()
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Looks at the output of this process; Ray prints to the streams that `sys` has then."""
        with (
            contextlib.redirect_stdout(Tee(sys.stdout, self)),
            contextlib.redirect_stderr(Tee(sys.stderr, self)),
        ):
            yield

    def write(self, text: str) -> int:
        """Looks for ends in printed text."""
        with self._changed:
            self._seen.update(_ANY_END.findall(text))
            self._changed.notify_all()
        return len(text)

    def expect(self, task: str, attempt: int) -> None:
        """Expects the lines of a worker that has returned."""
        self._expected.add(_end(task, attempt))

    def forget(self) -> None:
        """Expects no more lines of an attempt that failed: a node of it may be gone."""
        self._expected.clear()

    def wait(self) -> None:
        """Waits until all that was expected has been printed, at most for a minute."""
        with self._changed:
            if not self._changed.wait_for(self._has_all, _LIMIT_S):
                _logger.warning(
                    "Ray has not shown the last lines of all workers within %g s. They are in the "
                    "files worker-*.out and worker-*.err on their nodes, in "
                    "/tmp/ray/session_latest/logs unless Ray was started with another folder.",
                    _LIMIT_S,
                )

    def _has_all(self) -> bool:
        return all(self._seen[end] >= 2 for end in self._expected)  # on both streams


def _end(task: str, attempt: int) -> str:
    return _END.format(task=task.replace(" ", "-"), attempt=attempt)
