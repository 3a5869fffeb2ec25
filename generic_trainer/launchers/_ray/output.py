"""Last lines of the workers, which Ray shows a moment after they are written."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, TextIO

_STREAMS = 2
_TIMEOUT_S = 5.0
_END = re.compile(r"This was all that (.*) had to say\.")


def end_of_output(name: str) -> str:
    """Returns the line that a worker writes last, on both of its streams."""
    return f"This was all that {name} had to say."


class ShownOutput:
    """Notes which workers' last lines have been shown."""

    def __init__(self) -> None:
        self._ends: Counter[str] = Counter()
        self._changed = threading.Condition()

    def note(self, text: str) -> None:
        """Looks for last lines in what is being shown."""
        names = _END.findall(text)
        if names:
            with self._changed:
                self._ends.update(names)
                self._changed.notify_all()

    def wait_for(self, name: str) -> None:
        """Waits until all of a worker has been shown; not for ever, as it may be dead."""
        with self._changed:
            self._changed.wait_for(lambda: self._ends[name] >= _STREAMS, _TIMEOUT_S)


@contextlib.contextmanager
def shown_output() -> Iterator[ShownOutput]:
    """Yields the notes on what Ray shows: it prints the workers' lines from threads of its own."""
    shown = ShownOutput()
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Watched(sys.stdout, shown), _Watched(sys.stderr, shown)
    try:
        yield shown
    finally:
        sys.stdout, sys.stderr = streams


class _Watched(io.TextIOBase):
    def __init__(self, stream: TextIO, shown: ShownOutput) -> None:
        self._stream = stream
        self._shown = shown

    def write(self, text: str) -> int:
        written = self._stream.write(text)
        self._shown.note(text)
        return written

    def flush(self) -> None:
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:  # `isatty`, `encoding`, `fileno`
        return getattr(self._stream, name)
