"""What a worker and all that it has started use, read from `/proc`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Usage", "group_usage", "oom_kills"]

_MIB = 1 << 20
_PROC = Path("/proc")
# Fields of /proc/PID/stat after the name, which may hold anything: see proc(5).
_PGRP, _UTIME, _STIME, _RSS = 2, 11, 12, 21
_CGROUP_FILES = (
    "/sys/fs/cgroup/memory.events",
    "/sys/fs/cgroup/memory/memory.oom_control",
    "/proc/vmstat",
)


@dataclasses.dataclass(frozen=True)
class Usage:
    """What the processes of a group use.

    Attributes:
        cpu_s: processor time of all of them so far, in seconds.
        main_thread_s: that of the first one's main thread, to the nanosecond.
        resident_mb: memory that they occupy now, in MiB.
    """

    cpu_s: float = 0.0
    main_thread_s: float = 0.0
    resident_mb: float = 0.0


def group_usage(group: int) -> Usage | None:
    """Returns what a process group uses; None when that cannot be told, as on macOS."""
    if not _PROC.exists():
        return None
    ticks = pages = 0
    for fields in _stats():
        if int(fields[_PGRP]) == group:
            ticks += int(fields[_UTIME]) + int(fields[_STIME])
            pages += int(fields[_RSS])
    return Usage(
        cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
        main_thread_s=_main_thread_s(group),
        resident_mb=pages * os.sysconf("SC_PAGE_SIZE") / _MIB,
    )


def oom_kills() -> int:
    """Returns how many processes the kernel has killed for want of memory, as far as it says."""
    total = 0
    for path in _CGROUP_FILES:
        try:
            lines = Path(path).read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return total


def _stats() -> Iterator[list[str]]:
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            try:
                text = Path(entry.path, "stat").read_text()
            except OSError:  # it has ended
                continue
            yield text.rpartition(")")[2].split()


def _main_thread_s(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text()
    except OSError:  # it has ended, or the kernel keeps no such statistics
        return 0.0
    return int(text.split()[0]) / 1e9
