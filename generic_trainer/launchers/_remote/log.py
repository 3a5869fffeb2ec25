"""The log of a worker elsewhere: shown here while it is written, and sent from there."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator

from generic_trainer._core.cluster import Task
from generic_trainer._core.output import kept_output
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer.launchers._packing import JobFolder

# How often what is new is sent: an object store takes some writes a second, and keeps each.
_SEND_S = 2.0
_LOG_RETRY_S = 1.0
_LAST_LINES_S = 10.0


@contextlib.contextmanager
def shown_log(read: Callable[[], tuple[str, Iterator[str]]], prefix: str = "") -> Iterator[None]:
    """Shows lines on standard output, from a thread, until the context closes; then the rest.

    Args:
        read: returns who writes, and all lines from the first one on. It is asked again when it
            fails, as while a container is being made, and when it ends, as a connection may.
            Another writer begins anew.
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


@contextlib.contextmanager
def published_log(folder: JobFolder, task: Task) -> Iterator[None]:
    """Sends what this process and its children print into the folder of the job, part by part."""
    closes = threading.Event()
    with ScratchFolder("log-") as scratch:
        path = os.path.join(scratch, "log")
        thread = threading.Thread(target=_send, args=(path, folder, task, closes), daemon=True)
        thread.start()
        try:
            with kept_output(path):
                yield
        finally:
            closes.set()
            thread.join(_LAST_LINES_S)


class PublishedLog:
    """The other end of `published_log`."""

    def __init__(self, folder: JobFolder, task: Task) -> None:
        self.folder = folder
        self._task = task
        self._parts: list[bytes] = []

    def lines(self) -> Iterator[str]:
        """Yields all whole lines that have been sent so far."""
        while (part := self.folder.log(self._task, len(self._parts))) is not None:
            self._parts.append(part)
        yield from b"".join(self._parts).decode(errors="replace").split("\n")[:-1]


def _send(path: str, folder: JobFolder, task: Task, closes: threading.Event) -> None:
    number = sent = 0
    is_last = False
    while not is_last:
        is_last = closes.wait(_SEND_S)
        with contextlib.suppress(Exception):  # of the object store: there is a next time
            with open(path, "rb") as log:
                log.seek(sent)
                part = log.read()
            if part:
                ends = b"" if part.endswith(b"\n") or not is_last else b"\n"
                folder.write_log(task, number, part + ends)
                number, sent = number + 1, sent + len(part)


def _show(
    read: Callable[[], tuple[str, Iterator[str]]], prefix: str, closes: threading.Event
) -> None:
    shown, writer = 0, ""
    last = False
    while not last:
        last = closes.wait(_LOG_RETRY_S if shown else 0.1)
        with contextlib.suppress(Exception):  # what is missing now will be there next time
            found, lines = read()
            if found != writer:
                shown, writer = 0, found
            for number, line in enumerate(lines):
                if number >= shown:
                    sys.stdout.write(f"{prefix}{line}\n")
                    sys.stdout.flush()
                    shown += 1
