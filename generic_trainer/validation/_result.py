"""What one check found."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

__all__ = ["Finding", "Result", "Status", "fail", "merge", "note", "skip", "warn"]

Status = Literal["pass", "fail", "warn", "skip"]
_WORST_FIRST: tuple[Status, ...] = ("fail", "warn", "pass", "skip")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that a check has to say; a check may have several."""

    status: Status
    message: str
    remedy: str = ""


@dataclasses.dataclass(frozen=True)
class Result:
    """The verdict of one check.

    Attributes:
        name: the check's name, the key in `ServingContract.severities`.
        status: `"pass"`, `"fail"`, `"warn"` or `"skip"`.
        message: what was expected and what was found, where; one line per finding.
        remedy: what to do about it; empty for a pass.
        seconds: how long the check took.
    """

    name: str
    status: Status
    message: str = ""
    remedy: str = ""
    seconds: float = 0.0


def fail(message: str, remedy: str) -> Finding:
    """The model must not be published."""
    return Finding("fail", message, remedy)


def warn(message: str, remedy: str) -> Finding:
    """The model can be published, and somebody should know."""
    return Finding("warn", message, remedy)


def skip(message: str) -> Finding:
    """The check does not apply, or what it needs was not given."""
    return Finding("skip", message)


def note(message: str) -> Finding:
    """Nothing is wrong; worth a line in the report."""
    return Finding("pass", message)


def merge(name: str, findings: Iterable[Finding], seconds: float = 0.0) -> Result:
    """Makes one `Result` of all that a check found: the worst status wins, none means pass."""
    listed = list(findings)
    found = {finding.status for finding in listed}
    status: Status = next((status for status in _WORST_FIRST if status in found), "pass")
    told = [f for f in listed if f.status in ("fail", "warn")] or listed
    return Result(
        name=name,
        status=status,
        message="\n".join(f.message for f in told),
        remedy="\n".join(dict.fromkeys(f.remedy for f in told if f.remedy)),
        seconds=seconds,
    )
