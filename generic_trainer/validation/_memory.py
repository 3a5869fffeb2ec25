"""How much memory does this process hold?"""

from __future__ import annotations

import contextlib
from pathlib import Path

__all__ = ["peak_mb", "resident_mb"]


def resident_mb() -> float | None:
    """Returns the resident memory of this process in MiB; None where it cannot be read."""
    return _status_mb("VmRSS")


def peak_mb() -> float | None:
    """Returns the most that was ever resident, in MiB; None where it cannot be read."""
    return _status_mb("VmHWM")


def _status_mb(key: str) -> float | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return float(line.split()[1]) / 1024
    return None
