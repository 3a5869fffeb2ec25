"""Locks between threads and between processes, and temporary folders that such locks protect.

Locks between processes are `flock(2)`. The kernel releases one when the last process that has the
file open exits or is killed, so there are no stale locks. A forked child keeps the file open; a
program started with `exec` does not. The library `filelock` would not do: it closes the file in a
forked child, and overwrites the signature of a dead holder before it can be read.

Temporary folders are private, below one folder per user, and deleted with their process. A folder
is in use as long as a lock beside it is held, by its process or by a fork of it. Creating a folder
also removes any whose lock is free, so leftovers of killed processes are cleaned up by the next
one.
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import socket
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import psutil

from generic_trainer._core.files import is_remote
from generic_trainer.errors import ConfigurationError

_POLL_S = 0.2
# Errors of flock(2) on file systems without locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
LOCK_SUFFIX = ".lock"  # the name of a lock inside a directory, and the end of that of one beside it
_CLAIM_S = 1.0  # `sweep` of another process holds a lock for a moment


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
    path = os.path.join(directory, LOCK_SUFFIX)
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
    holder = _signed(path)
    name = "an unknown process"
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

    A remote tree has no locks, and neither have some file systems.
    """
    with contextlib.ExitStack() as files:
        alone = True
        for folder, _, names in os.walk(root):
            if LOCK_SUFFIX in names:
                path = os.path.join(folder, LOCK_SUFFIX)
                try:
                    file = _locked_file(path)
                except OSError as error:
                    if error.errno not in NO_LOCKS:
                        raise
                    continue
                if file is not None:
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
    holder = _signed(path)
    here = _signature()
    if not holder or any(here.get(name, holder) == holder.get(name) for name in ("host", "boot")):
        return file
    file.close()
    return None


def is_holder_alive(path: str) -> bool | None:
    """Returns whether the process that has signed a lock is alive.

    None of a process on another machine, or in another container: nobody knows here.
    """
    signature = _signed(path)
    here = _signature()
    if any(signature.get(name) != here.get(name) for name in ("host", "boot")):
        return None
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


def system_temp_dir() -> str:
    """Returns the directory for the temporary files of all programs, which `TMPDIR` may name."""
    return tempfile.gettempdir()


def look_up_temp_dir() -> None:
    """Looks up the directory for temporary files again, after `TMPDIR` has changed."""
    tempfile.tempdir = None


@contextlib.contextmanager
def _made() -> Iterator[None]:
    """Explains that a temporary folder or file cannot be made."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"A temporary folder cannot be made: {error}. Expected a directory with room that this "
            "user may write to: make room there, or set TMPDIR to another one."
        ) from error


@_made()
def private_folder(temp_dir: str | None = None) -> str:
    """Returns the folder for all temporary folders of this user, which no other user may enter.

    Args:
        temp_dir: the directory above it; None for the system's, which `TMPDIR` names.

    Raises:
        ConfigurationError: it cannot be created, or its name is taken.
    """
    path = os.path.join(temp_dir or tempfile.gettempdir(), f"generic-trainer-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise ConfigurationError(
            f"{path} must be a directory of user {os.geteuid()}, for temporary files, but is "
            f"{stat.filemode(status.st_mode)} of user {status.st_uid}. Have it removed, or set "
            "TMPDIR to a directory of your own.",
            path=path,
        )
    if status.st_mode & 0o077:
        os.chmod(path, 0o700)
    return path


class ScratchFolder:
    """A temporary folder that is deleted when it is closed.

    ::

        with ScratchFolder("run-") as path: ...

    1. If never closed, it is deleted when the object is collected or the process exits.
    2. If the process is killed, it is deleted when another folder is created in the same place.
    3. A forked child does not delete it, and keeps others from deleting it.

    Attributes:
        path: the folder.
    """

    @_made()
    def __init__(self, prefix: str, inside: str | None = None) -> None:
        """Creates the folder.

        Args:
            prefix: the beginning of its name.
            inside: an existing local directory in which only such folders have this prefix; None
                for `private_folder()`.

        Raises:
            ConfigurationError: it cannot be created.
        """
        start, inside = ("", private_folder()) if inside is None else (prefix, inside)
        names = {entry.removesuffix(LOCK_SUFFIX) for entry in os.listdir(inside)}
        sweep(os.path.join(inside, name) for name in names if name.startswith(start))
        self.path, lock = _new_folder(prefix, inside)
        self._closing = weakref.finalize(self, _delete, self.path, lock, os.getpid())

    def __enter__(self) -> str:
        return self.path

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Deletes the folder; a second call does nothing."""
        self._closing()


@_made()
def unnamed_file(directory: str) -> int:
    """Returns the descriptor of a new file without a name, which the last close deletes.

    Raises:
        ConfigurationError: it cannot be created.
    """
    with tempfile.TemporaryFile(dir=directory) as file:
        return os.dup(file.fileno())


@contextlib.contextmanager
def claimed(path: str) -> Iterator[None]:
    """Protects a folder from other runs and from `sweep`, by a lock beside it.

    Args:
        path: the folder, which may be created and deleted meanwhile. On a file system without
            locks, and remotely, it is not protected, but not swept either.

    Raises:
        ConfigurationError: another run has claimed it, which is not known to be dead.
    """
    if is_remote(path):
        yield
        return
    lock, is_taken = None, False
    try:
        with contextlib.suppress(OSError):
            lock = signed_lock(path + LOCK_SUFFIX, wait_s=_CLAIM_S)
            is_taken = lock is None
        if lock is None:
            is_alive = is_holder_alive(path + LOCK_SUFFIX)
            # Leftover processes of a dead run may hold it. Without locks, a file that a process
            # elsewhere has signed may be a leftover, too.
            if is_alive or (is_alive is None and is_taken):
                raise another_run(path, path + LOCK_SUFFIX, waited_s=_CLAIM_S)
        yield
    finally:
        if lock is not None:
            if not os.path.lexists(path):
                with contextlib.suppress(OSError):
                    os.unlink(path + LOCK_SUFFIX)
            lock.close()


def sweep(paths: Iterable[str]) -> list[str]:
    """Deletes folders whose processes have exited, and their locks.

    Args:
        paths: the folders, which need not exist.

    Returns:
        The deleted folders.
    """
    swept = []
    for path in paths:
        lock = locked_file_of_the_dead(path + LOCK_SUFFIX)
        if lock is not None:
            if os.path.lexists(path):
                swept.append(path)
            _delete(path, lock)
    return swept


def _new_folder(prefix: str, inside: str) -> tuple[str, IO[str] | None]:
    lock = None
    while lock is None:  # `sweep` of another process may take the lock first
        path = os.path.join(inside, prefix + secrets.token_hex(4))
        try:
            lock = signed_lock(path + LOCK_SUFFIX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            break  # without locks, `sweep` deletes nothing
    os.mkdir(path, 0o700)
    return path, lock


def _delete(path: str, lock: IO[str] | None, owner: int | None = None) -> None:
    """Deletes a folder and then its lock; if the folder cannot be deleted, the lock stays.

    Args:
        path: the folder.
        lock: its lock, if the file system has locks.
        owner: the only process that may delete it; None for any.
    """
    if owner not in (None, os.getpid()):
        return
    for folder, _, _ in os.walk(path):  # some may have been made read-only
        with contextlib.suppress(OSError):
            os.chmod(folder, 0o700)
    shutil.rmtree(path, ignore_errors=True)
    if not os.path.lexists(path):
        with contextlib.suppress(OSError):
            os.unlink(path + LOCK_SUFFIX)
    if lock is not None:
        lock.close()


@contextlib.contextmanager
def unlike_a_pattern(directory: str) -> Iterator[str]:
    """Yields a path of a local directory that TensorFlow does not take for a pattern.

    It looks for the files of a checkpoint by a pattern, and so finds none below `fold[0]`.
    """
    if is_remote(directory) or {*"[\\"}.isdisjoint(directory):
        yield directory
        return
    with ScratchFolder("checkpoint-") as folder:
        link = os.path.join(folder, "directory")
        os.symlink(os.path.abspath(directory), link)
        yield link
