"""Reports for people: the HTML page and the terminal table of a validation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from generic_trainer._core.lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer.reports._files import write_report
    from generic_trainer.reports._html import render_html
    from generic_trainer.reports._terminal import print_report

__all__ = ["print_report", "render_html", "write_report"]

_HERE = "generic_trainer.reports"
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "print_report": f"{_HERE}._terminal",
        "render_html": f"{_HERE}._html",
        "write_report": f"{_HERE}._files",
    },
)
