"""Which path a dataset takes, and why."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import Literal

import tensorflow as tf

from generic_trainer._core.cluster import has_parameter_servers
from generic_trainer._core.machine import free_disk_bytes
from generic_trainer.data._estimate import Estimate

__all__ = ["Limits", "Path", "Plan", "choose_path", "stream_reason"]

Path = Literal["memory", "disk", "stream"]

_DISK_RESERVE_BYTES = 1 << 30


@dataclass(frozen=True)
class Plan:
    """A path and the reason for it, in words for the log."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Limits:
    """What the columns may take.

    Attributes:
        memory_bytes: in memory.
        directory: where they go on disk.
    """

    memory_bytes: int
    directory: str

    @classmethod
    def of(cls, memory_bytes: int, cache_dir: str | None) -> Limits:
        """Fills in the directory for temporary files; makes the one that is given."""
        if cache_dir is not None:
            os.makedirs(cache_dir, exist_ok=True)
        return cls(max(0, memory_bytes), cache_dir or tempfile.gettempdir())

    def disk_bytes(self) -> int:
        """Returns what may be written now, with a reserve left for others."""
        return max(0, free_disk_bytes(self.directory) - _DISK_RESERVE_BYTES)


def choose_path(found: Estimate, limits: Limits, one_pass: bool) -> Plan:
    """Chooses by the expected size of the columns."""
    size = f"about {_size(found.column_bytes)} of columns"
    if found.column_bytes <= limits.memory_bytes:
        return Plan("memory", f"{size} within the budget of {_size(limits.memory_bytes)}")
    larger = f"{size} are more than the memory budget of {_size(limits.memory_bytes)}"
    if one_pass:
        return Plan("stream", f"{larger}, and one pass is asked for")
    if found.column_bytes <= limits.disk_bytes():
        return Plan("disk", larger)
    free = _size(limits.disk_bytes())
    return Plan("stream", f"{larger} and than the {free} that are free in {limits.directory}")


def stream_reason() -> str | None:
    """Returns why columns of this process cannot serve the dataset; None: they can."""
    if tf.inside_function():
        return "the dataset is built inside a tf.function, which may run in another process"
    if has_parameter_servers():
        return "the cluster has parameter servers, which the coordinator sends the dataset to"
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return "a parameter server strategy sends the dataset to other processes"
    return None


def _size(num_bytes: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes} B"
