"""What was measured on a model, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["describe"]

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def describe(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns label and value for every fact that a reader wants, in reading order.

    Args:
        facts: `ValidationReport.facts`.
    """
    rows = [
        ("Size", _size(facts)),
        ("Signatures", ", ".join(facts.get("signatures", ()))),
        ("Latency, one example", _number(facts, "latency_ms", "ms")),
        ("Memory to load and score", _number(facts, "memory_mb", "MiB")),
        ("Saved by TensorFlow", facts.get("saved_by_tensorflow", "")),
        ("Checked with TensorFlow", facts.get("tensorflow_version", "")),
        ("Original directory hidden", _yes_or_no(facts, "original_hidden")),
        ("Time taken", _number(facts, "seconds", "s")),
    ]
    return [(label, value) for label, value in rows if value]


def _number(facts: Mapping[str, Any], key: str, unit: str) -> str:
    return f"{facts[key]:.4g} {unit}" if key in facts else ""


def _yes_or_no(facts: Mapping[str, Any], key: str) -> str:
    return ("yes" if facts[key] else "no") if key in facts else ""


def _size(facts: Mapping[str, Any]) -> str:
    if "size_bytes" not in facts:
        return ""
    size, unit = float(facts["size_bytes"]), 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {_UNITS[unit]} in {facts.get('files', '?')} files"
