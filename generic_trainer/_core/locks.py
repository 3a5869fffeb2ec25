"""Locks: one thread at a time in this process, one process at a time in a directory.

Those between processes are `flock(2)`, which the kernel releases with the last process that has the
file open, however that ended: there is no stale lock to detect. A child that was forked has it open
as well, one that another program was started in has not.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from generic_trainer.errors import ConfigurationError

_LOCK_FILE = ".lock"
_POLL_S = 0.2
# What flock(2) says of file systems that do not have it.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


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

    Who holds it is written into the file, for the message that the second one gets.
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
            directory: a local directory; made where it is missing, as after another run's end.
            wait_s: how long to wait, in seconds, while another holds it.
            clock: tells the time in seconds.
            sleep: waits for a number of seconds.

        Raises:
            ConfigurationError: another process, or another lock in this one, still holds it.
        """
        path = os.path.join(directory, _LOCK_FILE)
        deadline = clock() + wait_s
        file = _locked_in(directory)
        while file is None and clock() < deadline:
            sleep(_POLL_S)
            file = _locked_in(directory)
        if file is None:
            raise ConfigurationError(
                f"Another run writes into {directory}: {_holder(path)}. Expected to be the only "
                f"one (waited {wait_s:g} s). Let it finish or stop it; a run with other inputs, "
                "code or hyperparameters has a directory of its own."
            )
        self._file: IO[str] | None = file
        sign(file)

    def release(self) -> None:
        """Gives the lock back; doing so twice is no error."""
        if self._file is not None:
            self._file.close()
            self._file = None


@contextlib.contextmanager
def locks_held(root: str) -> Iterator[bool]:
    """Holds all `DirectoryLock`s in a directory tree; yields whether no other process has one."""
    with contextlib.ExitStack() as files:
        alone = True
        for folder, _, names in os.walk(root):
            if _LOCK_FILE in names:
                path = os.path.join(folder, _LOCK_FILE)
                if (file := locked_file(path)) is not None:
                    files.callback(file.close)
                else:  # what this process has left open does not count
                    alone = alone and _signed(path).get("pid") == os.getpid()
        yield alone


def _locked_in(directory: str) -> IO[str] | None:
    """Returns the lock of a directory, which a run that has ended may be deleting just now."""
    with contextlib.suppress(FileNotFoundError):
        os.makedirs(directory, exist_ok=True)
        return locked_file(os.path.join(directory, _LOCK_FILE))
    return None


def locked_file(path: str) -> IO[str] | None:
    """Returns a file, locked and made where it is missing; None while another has the lock.

    Closing it gives the lock back.

    Raises:
        OSError: it cannot be opened, or its file system has no locks.
    """
    file = open(path, "a+", encoding="utf-8", opener=_open)  # noqa: SIM115 - it stays open
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        file.close()
        raise
    # Another has it; or it was deleted between the two calls, and is the lock of nothing.
    file.close()
    return None


def locked_file_of_the_dead(path: str) -> IO[str] | None:
    """Returns a file that was locked by a process which is gone, locked by this one.

    None where that process lives, and where nothing can tell: file systems that several machines
    share may keep locks to each machine, so that another's are believed to be held.
    """
    try:
        file = locked_file(path)
    except OSError:
        return None
    if file is None:
        return None
    file.seek(0)
    holder = _parsed(file.read())
    here = _signature()
    if not holder or any(here.get(name, holder) == holder.get(name) for name in ("host", "boot")):
        return file
    file.close()
    return None


def sign(file: IO[str]) -> None:
    """Writes into a locked file who has locked it.

    Raises:
        OSError: the disk is full, for example.
    """
    file.truncate(0)
    json.dump(_signature(), file)
    file.flush()


def living_holder(path: str) -> str | None:
    """Returns the process that has signed a lock; None unless it is known to live."""
    signature, here = _signed(path), _signature()
    if not signature or any(signature.get(name) != here.get(name) for name in ("host", "boot")):
        return None
    with contextlib.suppress(KeyError, TypeError, ProcessLookupError, PermissionError):
        os.kill(signature["pid"], 0)
        return _holder(path)
    return None


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)  # less what the user's mask takes away


def _signature() -> dict[str, Any]:
    """Returns process and machine; containers of one machine differ in their names for it."""
    signature: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid()}
    with contextlib.suppress(OSError):
        signature["boot"] = _BOOT_ID.read_text(encoding="ascii").strip()
    return signature


def _holder(path: str) -> str:
    with contextlib.suppress(KeyError):
        holder = _signed(path)
        return f"process {holder['pid']} on {holder['host']}"
    return "an unknown process"


def _signed(path: str) -> dict[str, Any]:
    """Returns the signature in a file; nothing where there is none."""
    with contextlib.suppress(OSError):
        return _parsed(Path(path).read_text(encoding="utf-8"))
    return {}


def _parsed(signature: str) -> dict[str, Any]:
    """Returns a signature; nothing of one that was not written to its end."""
    try:
        holder = json.loads(signature)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}
