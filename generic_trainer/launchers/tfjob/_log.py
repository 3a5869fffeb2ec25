"""The log of the chief, shown while it is written."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

__all__ = ["shown_log"]

_RETRY_S = 1.0
_LAST_LINES_S = 10.0


@contextlib.contextmanager
def shown_log(read: Callable[[], Iterator[str]], prefix: str = "") -> Iterator[None]:
    """Shows lines on standard output, from a thread, until the context closes; then the rest.

    Args:
        read: yields all lines from the first one on. It is asked again when it fails, as while a
            container is being made, and when it ends, as a connection may.
        prefix: comes before each line.
    """
    closes = threading.Event()
    thread = threading.Thread(target=_show, args=(read, prefix, closes), daemon=True)
    thread.start()
    try:
        yield
    finally:
        closes.set()
        thread.join(_LAST_LINES_S)


def _show(read: Callable[[], Iterator[str]], prefix: str, closes: threading.Event) -> None:
    shown = 0
    last = False
    while not last:
        last = closes.wait(_RETRY_S if shown else 0.1)
        with contextlib.suppress(Exception):  # what is missing now will be there next time
            for number, line in enumerate(read()):
                if number >= shown:
                    sys.stdout.write(f"{prefix}{line}\n")
                    sys.stdout.flush()
                    shown += 1
