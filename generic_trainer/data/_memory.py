"""How much memory and disk is free, containers considered."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

__all__ = ["free_disk_bytes", "free_memory_bytes"]

_CGROUP = Path("/sys/fs/cgroup")


def free_memory_bytes() -> int:
    """Returns what this process may still take without swapping, in bytes.

    The smaller of what the machine has available and what the control group still allows
    (https://docs.kernel.org/admin-guide/cgroup-v2.html, memory interface files).
    """
    candidates = (_available_to_machine(), _left_of_cgroup())
    return min(candidate for candidate in candidates if candidate is not None)


def free_disk_bytes(directory: str) -> int:
    """Returns what may still be written into a directory, in bytes."""
    return shutil.disk_usage(directory).free


def _available_to_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _left_of_cgroup() -> int | None:
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            allowed = (_CGROUP / limit).read_text().strip()
            used = (_CGROUP / usage).read_text().strip()
        except OSError:
            continue
        return None if allowed == "max" else max(0, int(allowed) - int(used))
    return None
