"""Locks between threads of this process, and between processes that share a directory.

Locks between processes are `flock(2)`. The kernel releases one when the last process that has the
file open exits or is killed, so there are no stale locks. A forked child keeps the file open; a
program started with `exec` does not. The library `filelock` would not do: it closes the file in a
forked child, and overwrites the signature of a dead holder before it can be read.
"""

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

import psutil

from generic_trainer.errors import ConfigurationError

_LOCK_FILE = ".lock"
_POLL_S = 0.2
# Errors of flock(2) on file systems without locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@contextlib.contextmanager
def held(lock: Any, on_wait: Callable[[], None]) -> Iterator[None]:
    """Holds a lock of this process, reentrantly.

    Args:
        lock: a `threading.RLock`.
        on_wait: called before waiting for another thread.
    """
    if not lock.acquire(blocking=False):
        on_wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def lock_directory(directory: str, *, wait_s: float = 0.0) -> IO[str]:
    """Locks a local directory, and returns the file whose `close` or the process's end releases it.

    The file names its holder, for the error that a second process gets.

    Args:
        directory: a local directory; created if missing, as after the end of another run.
        wait_s: how long to wait for another holder, in seconds.

    Raises:
        ConfigurationError: another process, or another lock in this one, still holds it.
        OSError: the file system has no locks, for example; see `NO_LOCKS`.
    """
    path = os.path.join(directory, _LOCK_FILE)
    if (file := signed_lock(path, wait_s=wait_s)) is None:
        raise another_run(directory, path, waited_s=wait_s)
    return file


def signed_lock(path: str, *, wait_s: float = 0.0) -> IO[str] | None:
    """Returns a lock, in a file that names this process; None if another one holds it.

    Args:
        path: the file; it and its directory are created if missing.
        wait_s: how long to wait for another holder, in seconds.

    Raises:
        OSError: the file system has no locks, for example; see `NO_LOCKS`.
    """
    deadline_s = time.monotonic() + wait_s
    while True:
        with contextlib.suppress(FileNotFoundError):  # another run is deleting the directory
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if (file := _locked_file(path)) is not None:
                with contextlib.suppress(OSError):  # the disk is full, for example
                    file.truncate(0)
                    json.dump(_signature(), file)
                    file.flush()
                return file
        if time.monotonic() >= deadline_s:
            return None
        time.sleep(_POLL_S)


def another_run(subject: str, path: str, *, waited_s: float) -> ConfigurationError:
    """Returns the error of a run that did not get a lock.

    Args:
        subject: the directory that the lock protects.
        path: of the lock.
        waited_s: how long the run has waited for it, in seconds.
    """
    holder, name = _signed(path), "an unknown process"
    if holder:
        name = f"process {holder.get('pid')} on {holder.get('host')}"
    return ConfigurationError(
        f"Another run writes into {subject}: {name}. Expected to be the only one (waited "
        f"{waited_s:g} s). Let it finish or stop it, and run again; a run with other inputs, code "
        "or hyperparameters has checkpoints of its own."
    )


@contextlib.contextmanager
def locks_held(root: str) -> Iterator[bool]:
    """Holds the locks of all directories in a tree; yields False if another process has one.

    A remote tree has no locks.
    """
    with contextlib.ExitStack() as files:
        alone = True
        for folder, _, names in os.walk(root):
            if _LOCK_FILE in names:
                path = os.path.join(folder, _LOCK_FILE)
                if (file := _locked_file(path)) is not None:
                    files.callback(file.close)
                else:  # locks of this process do not count
                    alone = alone and _signed(path).get("pid") == os.getpid()
        yield alone


def _locked_file(path: str) -> IO[str] | None:
    """Returns a locked file, created if missing; None if another process has the lock.

    Closing it releases the lock.

    Raises:
        OSError: it cannot be opened, or its file system has no locks.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(path, "a+", encoding="utf-8", opener=_open))
        # Another process has the lock, or deletes the file between the two calls.
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                stack.pop_all()  # it stays open
                return file
    return None


def locked_file_of_the_dead(path: str) -> IO[str] | None:
    """Locks the file of a process that has exited, and returns it.

    None if that process is alive or that is unknown: on shared file systems locks may only hold
    within each machine, so locks of other machines count as held.
    """
    file = None
    with contextlib.suppress(OSError):
        file = _locked_file(path)
    if file is None:
        return None
    holder, here = _signed(path), _signature()
    if not holder or any(here.get(name, holder) == holder.get(name) for name in ("host", "boot")):
        return file
    file.close()
    return None


def has_living_holder(path: str) -> bool:
    """Returns whether the process that has signed a lock is known to be alive."""
    signature, here = _signed(path), _signature()
    if not signature or any(signature.get(name) != here.get(name) for name in ("host", "boot")):
        return False
    return psutil.pid_exists(signature.get("pid", -1))


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)  # less the umask


def _signature() -> dict[str, Any]:
    """Returns process and machine; containers of one machine have the same boot id."""
    signature: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid()}
    with contextlib.suppress(OSError):
        signature["boot"] = _BOOT_ID.read_text(encoding="ascii").strip()
    return signature


def _signed(path: str) -> dict[str, Any]:
    """Returns the signature in a file; empty if there is none, or it is incomplete."""
    try:
        holder = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}
