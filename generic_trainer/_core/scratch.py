"""Temporary folders: private, below one folder per user, and gone after the process that made them.

A folder is in use as long as a lock beside it is held, by that process or by one that was forked
from it while the folder was there. Who makes a folder deletes those whose locks nobody holds: what
killed processes left is gone with the next one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import IO

from generic_trainer._core.locks import (
    NO_LOCKS,
    living_holder,
    locked_file,
    locked_file_of_the_dead,
    sign,
)
from generic_trainer.errors import ConfigurationError

LOCK_SUFFIX = ".lock"
_CLAIM_POLLS, _CLAIM_POLL_S = 50, 0.02


def system_temp_dir() -> str:
    """Returns the directory for the temporary files of all programs, which `TMPDIR` may name."""
    return tempfile.gettempdir()


def move_temp_dir(path: str) -> None:
    """Makes a directory the one for temporary files, for this process and those it starts."""
    os.environ["TMPDIR"] = path
    look_up_temp_dir()


def look_up_temp_dir() -> None:
    """Has the directory for temporary files found again, after `TMPDIR` has changed."""
    tempfile.tempdir = None


def private_folder(temp_dir: str | None = None) -> str:
    """Returns the folder for all temporary folders of this user, which no other user may enter.

    Args:
        temp_dir: where it lies; None for the system's, which `TMPDIR` names.

    Raises:
        ConfigurationError: it cannot be made, or something else has its name.
    """
    try:
        path = os.path.join(temp_dir or tempfile.gettempdir(), f"generic-trainer-{os.geteuid()}")
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if is_ours and found.st_mode & 0o077:
            os.chmod(path, 0o700)
    except OSError as error:
        raise _cannot_be_made(error) from error
    if not is_ours:
        raise ConfigurationError(
            f"{path} must be a directory of user {os.geteuid()}, for temporary files, but is "
            f"{stat.filemode(found.st_mode)} of user {found.st_uid}. Have it removed, or set "
            "TMPDIR to a directory of your own.",
            path=path,
        )
    return path


class ScratchFolder:
    """A temporary folder, empty at first, that is deleted when it is closed.

    ::

        with ScratchFolder("run-") as path: ...

    1. Who forgets to close it has it deleted when this object is gone, or the process ends.
    2. A process that was killed leaves it to the next one that makes a folder in the same place.
    3. A child that was forked does not delete it, and keeps it from being swept.

    Attributes:
        path: the folder.
    """

    def __init__(self, prefix: str, inside: str | None = None) -> None:
        """Makes the folder.

        Args:
            prefix: the beginning of its name.
            inside: an existing local directory in which nothing else has names that begin so; None
                for `private_folder()`.

        Raises:
            ConfigurationError: it cannot be made.
        """
        start, inside = ("", private_folder()) if inside is None else (prefix, inside)
        try:
            names = {each.removesuffix(LOCK_SUFFIX) for each in os.listdir(inside)}
            sweep(os.path.join(inside, each) for each in names if each.startswith(start))
            self.path, lock = _new_folder(prefix, inside)
        except OSError as error:
            raise _cannot_be_made(error) from error
        self._closing = weakref.finalize(self, _close, self.path, lock, os.getpid())

    def __enter__(self) -> str:
        return self.path

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Deletes the folder; doing so twice is no error."""
        self._closing()


def unnamed_file(directory: str) -> int:
    """Returns the descriptor of a new file without a name, which is gone when nobody has it open.

    Raises:
        ConfigurationError: it cannot be made.
    """
    # Not every file system can make one that never had a name.
    with ScratchFolder("unnamed-", directory) as folder, tempfile.TemporaryFile(dir=folder) as file:
        return os.dup(file.fileno())


@contextlib.contextmanager
def claimed(path: str) -> Iterator[None]:
    """Keeps other runs, and who sweeps, out of a folder that lies elsewhere: by a lock beside it.

    Args:
        path: the folder, which may be made and deleted meanwhile; where the folder above it is
            missing or has no locks, nobody sweeps.

    Raises:
        ConfigurationError: another run, which lives, has claimed it.
    """
    lock = None
    try:
        with contextlib.suppress(OSError):
            lock = _claim(path)
        yield
    finally:
        if lock is not None:
            if not os.path.lexists(path):
                with contextlib.suppress(OSError):
                    os.unlink(path + LOCK_SUFFIX)
            lock.close()


def _claim(path: str) -> IO[str] | None:
    """Returns the lock of a folder; None where what a dead run has started keeps it."""
    for _ in range(_CLAIM_POLLS):
        if (lock := locked_file(path + LOCK_SUFFIX)) is not None:
            with contextlib.suppress(OSError):
                sign(lock)
            return lock
        if (holder := living_holder(path + LOCK_SUFFIX)) is not None:
            raise ConfigurationError(
                f"Another run writes into {path}: {holder}. Expected to be the only one. Let it "
                "finish or stop it, and run again."
            )
        time.sleep(_CLAIM_POLL_S)  # who sweeps has it for a moment, and does not sign
    return None


def sweep(paths: Iterable[str]) -> list[str]:
    """Deletes folders whose processes are gone, and their locks.

    Args:
        paths: the folders, which need not exist.

    Returns:
        Those that were deleted.
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
    while True:
        path = tempfile.mkdtemp(prefix=prefix, dir=inside)
        try:
            lock = locked_file(path + LOCK_SUFFIX)
        except OSError as error:
            if error.errno in NO_LOCKS:  # nobody gets one, and so nobody sweeps
                return path, None
            os.rmdir(path)
            raise
        if lock is not None and os.path.isdir(path):
            with contextlib.suppress(OSError):
                sign(lock)
            return path, lock
        # Who sweeps has seen it between the two calls, and deletes it.
        if lock is not None:
            _delete(path, lock)


def _close(path: str, lock: IO[str] | None, pid: int) -> None:
    if os.getpid() == pid:
        _delete(path, lock)


def _delete(path: str, lock: IO[str] | None) -> None:
    """Deletes a folder and its lock, which stays where the folder does."""
    shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):
        for folder, _, _ in os.walk(path):  # some may have been made read-only
            with contextlib.suppress(OSError):
                os.chmod(folder, 0o700)
        shutil.rmtree(path, ignore_errors=True)
    if not os.path.lexists(path):
        with contextlib.suppress(OSError):
            os.unlink(path + LOCK_SUFFIX)
    if lock is not None:
        lock.close()


def _cannot_be_made(error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"A temporary folder cannot be made: {error}. Expected a directory with room that this "
        "user may write to: make room there, or set TMPDIR to another one."
    )
