"""The room that columns may take, in memory and on disk.

It can be asked for without TensorFlow.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from generic_trainer._core.machine import free_disk_bytes, free_memory_bytes
from generic_trainer._core.scratch import private_folder
from generic_trainer.errors import ConfigurationError

# An environment variable, because it belongs to the machine: the same pipeline runs on others. An
# argument of the component or an entry of `custom_config` would be an execution property, so that
# another budget would run the step anew, and `custom_config` is the user's own.
MEMORY_VARIABLE = "GENERIC_TRAINER_READER_MEMORY_MB"

_SHARE_OF_FREE_MEMORY = 4
_MB = 10**6
_DISK_RESERVE_BYTES = 1 << 30


def default_budget_bytes() -> int:
    """Returns what the environment allows, else a quarter of what is free, in bytes.

    Raises:
        ConfigurationError: the environment variable is no whole number of megabytes.
    """
    text = os.environ.get(MEMORY_VARIABLE, "").strip()
    if not text:
        return free_memory_bytes() // _SHARE_OF_FREE_MEMORY
    if not text.isdecimal():
        raise ConfigurationError(
            f"{MEMORY_VARIABLE}: expected a whole number of megabytes, such as 4000, found {text!r}"
        )
    return int(text) * _MB


@dataclass(frozen=True)
class ReaderBudget:
    """What columns may take.

    Attributes:
        memory_bytes: in memory.
        directory: where they go on disk.
    """

    memory_bytes: int
    directory: str

    @classmethod
    def of(cls, memory_bytes: int | None, cache_dir: str | None) -> ReaderBudget:
        """Returns what a caller allows, with the defaults for what is None; makes `cache_dir`.

        Raises:
            ConfigurationError: the environment's default is no number.
        """
        if memory_bytes is None:
            memory_bytes = default_budget_bytes()
        if cache_dir is not None:
            os.makedirs(cache_dir, exist_ok=True)
        return cls(max(0, memory_bytes), cache_dir or private_folder())

    def without(self, taken_bytes: int) -> ReaderBudget:
        """Returns what is left when so much memory is taken."""
        return replace(self, memory_bytes=max(0, self.memory_bytes - taken_bytes))

    def disk_bytes(self) -> int:
        """Returns what may be written now, with a reserve left for others."""
        return max(0, free_disk_bytes(self.directory) - _DISK_RESERVE_BYTES)


def size_text(num_bytes: int) -> str:
    """Returns a size for people, such as "1.5 GB"."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes} B"
