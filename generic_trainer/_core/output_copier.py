"""Program that copies what a process writes: to where it is shown, and into a file.

    python output_copier.py PARENT KEPT SOURCE SOURCE

`output.kept_output` starts it, with descriptors that it opened, and leads its own descriptors 1 and
2 into the two sources, which are files without a name. A file never makes its writer wait, and is
there when the writer is gone: this process copies the last words before a crash. It ends when it is
told to by a byte on its standard input, or when its parent is gone; whoever else may still write
into the files. It imports the standard library alone, to be there at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Sequence

_CHUNK_BYTES = 1 << 18
# The space of what was copied is given back in pieces of this size.
_RELEASED_BYTES = 1 << 20
# The time between two looks: short while something is written, longer when nothing is.
_LEAST_S, _MOST_S = 0.01, 0.05
# The children of a parent that was killed may live on for a moment, and its daemons for ever.
_LAST_LOOKS = 50
# fallocate(2): FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE.
_PUNCH_HOLE = 0x01 | 0x02


class Stream:
    """One of the streams on its way; how far it was kept is the position of its source.

    Two processes that share the descriptor thereby know of each other how far they are.
    """

    def __init__(self, source: int, *, kept: int, shown: int | None) -> None:
        """Notes the descriptors.

        Args:
            source: the file that is written to, opened once more for reading and writing.
            kept: the file to keep everything in, opened for appending.
            shown: where to show it; None to show nothing.
        """
        self._source, self._kept, self._shown = source, kept, shown
        self._released = 0
        # A terminal may have a line below the cursor, which this is going to be written over.
        self._erase = b"\x1b[J" if shown is not None and os.isatty(shown) else b""

    @property
    def position(self) -> int:
        """The number of bytes that were kept."""
        return os.lseek(self._source, 0, os.SEEK_CUR)

    def copy(self, *, by_line: bool = False) -> bool:
        """Copies what is there by now; returns whether anything was copied.

        Args:
            by_line: leave the beginning of a line to the next call, unless it is all there is:
                the other stream would be kept in the middle of what somebody is about to write.
        """
        start, end = self.position, os.fstat(self._source).st_size
        if end < start:  # a shell has opened /dev/stdout anew, which empties a file
            start = self._released = os.lseek(self._source, 0, os.SEEK_SET)
        position = start
        while position < end:
            part = os.pread(self._source, min(_CHUNK_BYTES, end - position), position)
            if not part:
                break
            if by_line and position + len(part) >= end:
                part = part[: part.rfind(b"\n") + 1] or (part if position == start else b"")
                end = position + len(part)
            _write(self._kept, part)
            position = os.lseek(self._source, position + len(part), os.SEEK_SET)
            if self._shown is not None:
                _write(self._shown, self._erase + part)
            self._release(position)
        return position > start

    def _release(self, position: int) -> None:
        """Gives back the disk space of what was copied, where the file system can do that."""
        length = position - self._released
        if length < _RELEASED_BYTES:
            return
        with contextlib.suppress(AttributeError):  # not on Linux
            offsets = ctypes.c_long(self._released), ctypes.c_long(length)
            ctypes.CDLL(None).fallocate(self._source, _PUNCH_HOLE, *offsets)
        self._released = position


def main(parent: int, kept: int, sources: Sequence[int]) -> None:
    """Copies until it is told to end, or the parent is gone.

    Args:
        parent: the process that has started this one.
        kept: see `Stream`.
        sources: of what is shown on the descriptors 1 and 2 of this process.
    """
    # Whoever tells all processes of a machine to end wants to see what they say to that.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    streams = [
        Stream(source, kept=kept, shown=shown)
        for source, shown in zip(sources, (1, 2), strict=True)
    ]

    def copy(*, by_line: bool) -> bool:
        return True in [stream.copy(by_line=by_line) for stream in streams]

    pause_s = _LEAST_S
    told: bytes | None = None  # nothing at all when the parent is gone
    while told is None and os.getppid() == parent:
        pause_s = _LEAST_S if copy(by_line=True) else min(2 * pause_s, _MOST_S)
        if select.select([0], [], [], pause_s)[0]:
            told = os.read(0, 1)
    looks = 1 if told else _LAST_LOOKS
    while looks and copy(by_line=False):
        looks -= 1
        time.sleep(_LEAST_S)


def _write(descriptor: int, data: bytes) -> None:
    """Writes all of it, or nothing more where that is impossible: a full disk, a closed pipe."""
    with contextlib.suppress(OSError):
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:  # others have made a terminal or a pipe so
                select.select([], [descriptor], [])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), [int(source) for source in sys.argv[3:]])
