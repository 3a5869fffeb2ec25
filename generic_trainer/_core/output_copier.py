"""A program that copies the output of its parent process to the terminal and into a file.

    python output_copier.py PARENT KEPT SOURCE SOURCE

`output.kept_output` starts it with open descriptors. The two sources are unnamed files, which
replace standard output and error of the parent. Unlike a pipe, a file never blocks its writer and
survives a crash of it, so the last output before the crash is copied as well. A line on its
standard input is shown below the output, if that is a terminal. The program exits after the byte
`END` there, or when its parent has exited, even if other processes still write into the files. It
only imports the standard library, so that it starts quickly.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Sequence

_CHUNK_BYTES = 1 << 18
# The pause between two copies: short during output, longer without.
_LEAST_S = 0.01
_MOST_S = 0.05
END = b"."
_ERASED = b"\r\x1b[K"
# After the parent was killed, its children may write for a moment longer, so copying continues; but
# its daemons may write forever, so it ends after this number of copies.
_LAST_LOOKS = 50
# fallocate(2): FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE.
_PUNCH_HOLE = 0x01 | 0x02


class Terminal:
    """Output of this process on the descriptors 1 and 2, and a status line below it.

    The line is shown while the cursor is at the start of a line, so it does not mix with a progress
    bar in the output.
    """

    def __init__(self) -> None:
        self._status = b""
        self._is_shown = False
        self._at_start = True

    def write(self, descriptor: int, output: bytes) -> None:
        """Writes output in place of the status, which the next `show` shows again."""
        self._erase()
        _write(descriptor, output)
        if os.isatty(descriptor):
            self._at_start = output.endswith(b"\n")

    def show(self, status: bytes | None = None) -> None:
        """Shows a status, or the last one; an empty one is not shown."""
        if status is not None and status != self._status:
            self._erase()
            self._status = status
        if self._status and self._at_start and not self._is_shown and os.isatty(2):
            _write(2, self._status[: (os.get_terminal_size(2).columns or 80) - 1])
            self._is_shown = True

    def _erase(self) -> None:
        if self._is_shown:
            _write(2, _ERASED)
        self._is_shown = False


class Stream:
    """One output stream; the file position of its source is the number of bytes copied so far.

    The position belongs to the open file, so processes that share the descriptor share it.
    """

    def __init__(
        self, source: int, *, kept: int, shown: int | None, terminal: Terminal | None = None
    ) -> None:
        """Stores the descriptors.

        Args:
            source: a descriptor of the file with the output, for reading and writing.
            kept: a descriptor of the file that keeps all output, for appending.
            shown: the descriptor on which the output is shown; None to show nothing.
            terminal: shared by the streams of this process.
        """
        self._terminal = terminal or Terminal()
        self._source = source
        self._kept = kept
        self._shown = shown

    @property
    def position(self) -> int:
        """The number of bytes that were copied into the file."""
        return os.lseek(self._source, 0, os.SEEK_CUR)

    def copy(self, *, by_line: bool = False) -> bool:
        """Copies new output, and returns whether there was any.

        Args:
            by_line: leave an incomplete last line to the next call, so that output of the other
                stream is not inserted into it. It is copied if it is the only new output.
        """
        start = self.position
        end = os.fstat(self._source).st_size
        if end < start:  # a shell has reopened /dev/stdout, which truncates the file
            start = os.lseek(self._source, 0, os.SEEK_SET)
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
                self._terminal.write(self._shown, part)
        if position >> 20 > start >> 20:  # another MiB was copied: release its disk space
            with contextlib.suppress(AttributeError):  # not on Linux
                offsets = ctypes.c_long(0), ctypes.c_long(position)
                ctypes.CDLL(None).fallocate(self._source, _PUNCH_HOLE, *offsets)
        return position > start


def main(parent: int, kept: int, sources: Sequence[int]) -> None:
    """Copies until `END` arrives on standard input, or the parent has exited.

    Args:
        parent: the process id of the parent.
        kept: see `Stream`.
        sources: see `Stream`; shown on the descriptors 1 and 2 of this process.
    """
    # If all processes of a machine get SIGTERM, their last output must still be copied.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    terminal = Terminal()
    streams = [
        Stream(source, kept=kept, shown=shown, terminal=terminal)
        for source, shown in zip(sources, (1, 2), strict=True)
    ]

    def copy(*, by_line: bool) -> bool:
        return True in [stream.copy(by_line=by_line) for stream in streams]

    pause_s = _LEAST_S
    orders = b"\n"
    while orders.endswith(b"\n") and os.getppid() == parent:
        pause_s = _LEAST_S if copy(by_line=True) else min(2 * pause_s, _MOST_S)
        terminal.show()
        if select.select([0], [], [], pause_s)[0]:
            orders = os.read(0, _CHUNK_BYTES)  # empty if the parent has exited
            terminal.show(b"".join(orders.splitlines()[-1:]) if orders.endswith(b"\n") else b"")
    looks = 1 if orders.endswith(END) else _LAST_LOOKS
    while looks and copy(by_line=False):
        looks -= 1
        time.sleep(_LEAST_S)


def _write(descriptor: int, data: bytes) -> None:
    """Writes all data, or drops the rest on errors such as a full disk or a closed pipe."""
    with contextlib.suppress(OSError):
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:  # another process has made a terminal or pipe non-blocking
                select.select([], [descriptor], [])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), [int(source) for source in sys.argv[3:]])
