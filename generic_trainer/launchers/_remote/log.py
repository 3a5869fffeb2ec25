"""The log of a worker on another machine, shown here while it is written."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

_LOG_RETRY_S = 1.0
_LAST_LINES_S = 10.0


@contextlib.contextmanager
def shown_log(read: Callable[[], tuple[str, Iterator[str]]], prefix: str = "") -> Iterator[None]:
    """Shows lines on standard output, from a thread, until the context closes; then the rest.

    Args:
        read: returns the name of the writer, and all lines from the first one on. It is called
            again if it fails, as while a container is being made, or ends, as a connection may.
            The log of another writer is shown from its start.
        prefix: precedes each line.
    """
    closes = threading.Event()

    def show() -> None:
        shown, writer = 0, ""
        last = False
        while not last:
            last = closes.wait(_LOG_RETRY_S if shown else 0.1)
            with contextlib.suppress(Exception):  # the next turn tries again
                found, lines = read()
                if found != writer:
                    shown, writer = 0, found
                for number, line in enumerate(lines):
                    if number >= shown:
                        sys.stdout.write(f"{prefix}{line}\n")
                        sys.stdout.flush()
                        shown += 1

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        closes.set()
        thread.join(_LAST_LINES_S)
