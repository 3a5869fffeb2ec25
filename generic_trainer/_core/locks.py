"""Locks: one thread at a time in this process, one process at a time in a directory."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

from generic_trainer.errors import ConfigurationError

_LOCK_FILE = ".lock"
_POLL_S = 0.2


@contextlib.contextmanager
def held(lock: Any, on_wait: Callable[[], None]) -> Iterator[None]:
    """Holds a lock of this process; the thread that has it already may take it again.

    Args:
        lock: a `threading.RLock`.
        on_wait: called when another thread has it, before the wait.
    """
    if not lock.acquire(blocking=False):
        on_wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


class DirectoryLock:
    """An advisory lock on a local directory, held until it is released or the process is gone.

    It is `flock(2)`, which the kernel releases with the last process that holds it, however that
    ended: there is no stale lock to detect. Who holds it is written into the file, for the message
    that the second one gets.
    """

    def __init__(
        self,
        directory: str,
        *,
        wait_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Takes the lock.

        Args:
            directory: an existing local directory.
            wait_s: how long to wait, in seconds, while another holds it.
            clock: tells the time in seconds.
            sleep: waits for a number of seconds.

        Raises:
            ConfigurationError: another process, or another lock in this one, still holds it.
        """
        self._path = os.path.join(directory, _LOCK_FILE)
        deadline = clock() + wait_s
        file = self._try()
        while file is None and clock() < deadline:
            sleep(_POLL_S)
            file = self._try()
        if file is None:
            raise ConfigurationError(
                f"Another run writes into {directory}: {self._holder()}. Expected to be the only "
                f"one (waited {wait_s:g} s). Let it finish or stop it; a run with other inputs, "
                "code or hyperparameters has a directory of its own."
            )
        self._file: IO[str] | None = file
        self._sign(file)

    def release(self) -> None:
        """Gives the lock back; doing so twice is no error."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _try(self) -> IO[str] | None:
        file = open(self._path, "a+", encoding="utf-8")  # noqa: SIM115 - it stays open
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(self._path)):
                return file
        # The directory was cleaned up between the two calls: this is the lock of a file now gone.
        file.close()
        return None

    def _sign(self, file: IO[str]) -> None:
        file.truncate(0)
        json.dump({"host": socket.gethostname(), "pid": os.getpid()}, file)
        file.flush()

    def _holder(self) -> str:
        try:
            with open(self._path, encoding="utf-8") as file:
                holder = json.load(file)
            return f"process {holder['pid']} on {holder['host']}"
        except (OSError, ValueError, KeyError):
            return "an unknown process"
