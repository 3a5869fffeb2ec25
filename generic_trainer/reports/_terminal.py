"""A validation as a table on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from generic_trainer.reports._facts import describe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from generic_trainer.validation import Result, ValidationReport

__all__ = ["print_report"]

_ORDER = {"pass": 0, "skip": 0, "warn": 1, "fail": 2}  # what matters stands next to the verdict
_STYLES = {"pass": "green", "fail": "bold red", "warn": "yellow", "skip": "dim"}


def print_report(report: ValidationReport, console: Console | None = None) -> None:
    """Prints one line per check, the failures with their remedies, and the verdict last.

    Args:
        report: what to print.
        console: where to; None for standard output.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = console or Console()
    table = Table(box=None, pad_edge=False, show_header=False, expand=False)
    table.add_column("status", no_wrap=True)
    table.add_column("check", no_wrap=True)
    table.add_column("what was found", overflow="ellipsis")
    for result in sorted(report.results, key=lambda result: _ORDER[result.status]):
        style = _STYLES[result.status]
        table.add_row(Text(result.status.upper(), style=style), Text(result.name), _told(result))
    console.print(table)
    console.print()
    for label, value in describe(report.facts):
        console.print(Text.assemble((f"{label}: ", "dim"), value))
    console.print(_verdict(report))


def _told(result: Result) -> Text:
    """What was found: one line of it where all is well, everything where it is not."""
    from rich.text import Text

    if result.status in ("pass", "skip"):
        line = " ".join(result.message.split())
        return Text(line, style="dim", no_wrap=True, overflow="ellipsis")
    told = Text(result.message, overflow="fold")
    return told.append(f"\n→ {result.remedy}", style="cyan") if result.remedy else told


def _verdict(report: ValidationReport) -> str:
    failed, warned = len(report.failures), len(report.warnings)
    if report.passed:
        return f"[bold green]PASSED[/] with {warned} warning{'s' * (warned != 1)}"
    return f"[bold red]FAILED[/] {failed} check{'s' * (failed != 1)}"
