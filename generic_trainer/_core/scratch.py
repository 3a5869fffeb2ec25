"""Temporary folders: private, below one folder per user, and deleted with their process.

A folder is in use as long as a lock beside it is held, by its process or by a fork of it. Creating
a folder also removes any whose lock is free, so leftovers of killed processes are cleaned up by the
next one.
"""

import contextlib
import os
import secrets
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from typing import IO

from generic_trainer._core.locks import (
    NO_LOCKS,
    another_run,
    has_living_holder,
    locked_file_of_the_dead,
    signed_lock,
)
from generic_trainer.errors import ConfigurationError

LOCK_SUFFIX = ".lock"
_CLAIM_S = 1.0  # `sweep` of another process holds a lock for a moment


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
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise ConfigurationError(
            f"{path} must be a directory of user {os.geteuid()}, for temporary files, but is "
            f"{stat.filemode(found.st_mode)} of user {found.st_uid}. Have it removed, or set "
            "TMPDIR to a directory of your own.",
            path=path,
        )
    if found.st_mode & 0o077:
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
        names = {each.removesuffix(LOCK_SUFFIX) for each in os.listdir(inside)}
        sweep(os.path.join(inside, each) for each in names if each.startswith(start))
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
            locks it is not protected, but not swept either.

    Raises:
        ConfigurationError: another run, which is alive, has claimed it.
    """
    lock = None
    try:
        with contextlib.suppress(OSError):
            lock = signed_lock(path + LOCK_SUFFIX, wait_s=_CLAIM_S)
        # Leftover processes of a dead run may hold it.
        if lock is None and has_living_holder(path + LOCK_SUFFIX):
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
