"""Memory limits for a process that runs somebody's model."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

__all__ = ["limit_memory"]

_MIB = 1 << 20


def limit_memory(limit_mb: float | None) -> None:
    """Lets this process fail when it asks for too much, rather than the machine.

    Args:
        limit_mb: MiB that may be allocated from here on; None for what is free now. An allocation
            beyond it fails, and of all processes this one is the kernel's first choice when memory
            runs out in spite of that.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    allowance = limit_mb * _MIB if limit_mb is not None else _free_bytes()
    if allowance is None:
        return
    limit = int(allowance + _data_bytes())
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _free_bytes() -> float | None:
    candidates = [_available_bytes(), _cgroup_free_bytes()]
    return min((value for value in candidates if value is not None), default=None)


def _available_bytes() -> float | None:
    return _proc_kib("/proc/meminfo", "MemAvailable")


def _data_bytes() -> float:
    """Private writable memory of this process, which is what RLIMIT_DATA counts."""
    return _proc_kib("/proc/self/status", "VmData") or 0.0


def _proc_kib(path: str, key: str) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        for line in Path(path).read_text().splitlines():
            if line.startswith(key + ":"):
                return float(line.split()[1]) * 1024
    return None


def _cgroup_free_bytes() -> float | None:
    """What a container may still use (cgroup v2)."""
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        limit = int((group / "memory.max").read_text())
        return float(limit - int((group / "memory.current").read_text()))
    return None
