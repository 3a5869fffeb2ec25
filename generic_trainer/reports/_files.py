"""A validation's report as files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from generic_trainer.validation import ValidationReport

__all__ = ["write_report"]


def write_report(report: ValidationReport, directory: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Writes `report.json` and `report.html` into `directory`, which is made when absent.

    Returns:
        The two files' paths.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    as_json, as_html = folder / "report.json", folder / "report.html"
    as_json.write_text(report.to_json() + "\n", encoding="utf-8")
    as_html.write_text(report.to_html(), encoding="utf-8")
    return as_json, as_html
