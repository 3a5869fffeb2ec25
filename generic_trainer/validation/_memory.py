"""How much memory does this process hold?"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["resident_mb"]


def resident_mb() -> float | None:
    """Returns the resident memory of this process in MiB; None where it cannot be read."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    return None
