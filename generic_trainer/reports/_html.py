"""A validation as one HTML page that needs nothing but itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from generic_trainer.reports._facts import describe

if TYPE_CHECKING:
    from generic_trainer.validation import ValidationReport

__all__ = ["render_html"]


def render_html(report: ValidationReport) -> str:
    """Returns the page; whatever a model says in it is escaped."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("generic_trainer.reports", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    counts = {
        status: sum(result.status == status for result in report.results)
        for status in ("fail", "warn", "pass", "skip")
    }
    template = environment.get_template("validation.html")
    return template.render(report=report, counts=counts, facts=describe(report.facts))
