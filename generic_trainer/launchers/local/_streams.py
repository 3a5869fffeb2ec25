"""What several workers print, told apart by the worker's name."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

__all__ = ["prefixed"]

_EXIT_TIMEOUT_S = 5.0
_STANDARD = (1, 2)


@contextlib.contextmanager
def prefixed(names: list[str]) -> Iterator[dict[str, tuple[int, int]]]:
    """Yields name → the descriptors for standard output and error of the worker of that name.

    With one worker they are those of this process. With several, each line gets the worker's name
    in front. On exit what was printed has been shown.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # None or closed
            stream.flush()
    if len(names) == 1:
        yield {names[0]: _STANDARD}
        return
    threads, write_ends = [], {}
    for name in names:
        pipes = [os.pipe(), os.pipe()]
        for (read_end, _), target in zip(pipes, _STANDARD, strict=True):
            threads.append(threading.Thread(target=_copy, args=(read_end, target, name)))
            threads[-1].daemon = True
            threads[-1].start()
        write_ends[name] = (pipes[0][1], pipes[1][1])
    try:
        yield write_ends
    finally:
        for descriptors in write_ends.values():
            for descriptor in descriptors:
                os.close(descriptor)
        for thread in threads:
            thread.join(_EXIT_TIMEOUT_S)


def _copy(read_end: int, target: int, name: str) -> None:
    prefix = f"[{name}] ".encode()
    with open(read_end, "rb") as lines:
        for line in lines:
            text = prefix + line if line.endswith(b"\n") else prefix + line + b"\n"
            while text:
                text = text[os.write(target, text) :]
