"""The room that columns may take, in memory and on disk; importable without TensorFlow."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

from generic_trainer._core.machine import free_memory_bytes
from generic_trainer._core.scratch import private_folder
from generic_trainer.errors import ConfigurationError

ReadPath = Literal["memory", "disk", "stream"]

# Environment variables, because they belong to the machine, and the same pipeline runs on others.
# An argument of the component would be an execution property, so another budget would run the step
# anew, and `custom_config` belongs to the user.
MEMORY_VARIABLE = "GENERIC_TRAINER_READER_MEMORY_MB"
PATH_VARIABLE = "GENERIC_TRAINER_READER_PATH"

_SHARE_OF_FREE_MEMORY = 4
_MB = 10**6
_DISK_RESERVE_BYTES = 1 << 30


def default_budget_bytes() -> int:
    """Returns the budget in the environment, else a quarter of the free memory, in bytes.

    Raises:
        ConfigurationError: the environment variable is not a whole number of megabytes.
    """
    given = bytes_in_environment(MEMORY_VARIABLE)
    return free_memory_bytes() // _SHARE_OF_FREE_MEMORY if given is None else given


def bytes_in_environment(variable: str) -> int | None:
    """Returns the bytes of an environment variable in megabytes; None if it is not set.

    Raises:
        ConfigurationError: it is not a whole number.
    """
    text = os.environ.get(variable, "").strip()
    if text and not text.isdecimal():
        raise ConfigurationError(
            f"{variable}: expected a whole number of megabytes, such as 4000, found {text!r}"
        )
    return int(text) * _MB if text else None


def checked_path(path: str) -> ReadPath | None:
    """Returns the path that a caller, else the environment, has chosen; None for "auto".

    Raises:
        ConfigurationError: there is no such path.
    """
    given = os.environ.get(PATH_VARIABLE, "").strip()
    name, chosen = ("path", path) if path != "auto" else (PATH_VARIABLE, given or "auto")
    if chosen == "auto":
        return None
    if chosen not in get_args(ReadPath):
        raise ConfigurationError(
            f"{name}: expected 'auto', 'memory', 'disk' or 'stream', found {chosen!r}"
        )
    return cast(ReadPath, chosen)


@dataclass(frozen=True)
class ReaderBudget:
    """The room for columns.

    Attributes:
        memory_bytes: room in memory.
        directory: directory for columns on disk.
    """

    memory_bytes: int
    directory: str

    @classmethod
    def of(cls, memory_bytes: int | None, cache_dir: str | None) -> ReaderBudget:
        """Returns the budget of a caller, with defaults for arguments that are None.

        Raises:
            ConfigurationError: the default in the environment is not a number.
        """
        if memory_bytes is None:
            memory_bytes = default_budget_bytes()
        if cache_dir is not None:
            os.makedirs(cache_dir, exist_ok=True)
        return cls(max(0, memory_bytes), cache_dir or private_folder())

    def without(self, taken_bytes: int) -> ReaderBudget:
        """Returns the rest of the budget after so much memory is taken."""
        return replace(self, memory_bytes=max(0, self.memory_bytes - taken_bytes))

    def disk_bytes(self) -> int:
        """Returns the bytes that may be written now; see `free_disk_bytes`."""
        return free_disk_bytes(self.directory)


def free_disk_bytes(directory: str) -> int:
    """Returns the free space of the disk of a directory, less a reserve for other programs."""
    return max(0, shutil.disk_usage(directory).free - _DISK_RESERVE_BYTES)


def size_text(num_bytes: int) -> str:
    """Returns a readable size, such as "1.5 GB"."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes} B"
