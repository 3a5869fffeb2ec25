"""One finding about this machine."""

from __future__ import annotations

import dataclasses
from typing import Literal

__all__ = ["Symptom"]


@dataclasses.dataclass(frozen=True)
class Symptom:
    """One finding about this machine.

    Attributes:
        subject: what was looked at.
        status: `"ok"`; `"missing"` for what is optional; `"warn"` for what works, but not as well
            as it could; `"fail"` for what GenericTrainer cannot do without.
        found: what was found.
        remedy: what to do about it.
    """

    subject: str
    status: Literal["ok", "missing", "warn", "fail"]
    found: str
    remedy: str = ""
