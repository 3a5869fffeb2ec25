"""What the command's exit status tells."""

from __future__ import annotations

__all__ = ["FAILED", "PASSED", "WRONG_CALL"]

PASSED = 0
FAILED = 1
WRONG_CALL = 2
