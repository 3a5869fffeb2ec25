"""The outcome of all checks on one model: as JSON, as an HTML page, as a table on the terminal."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from generic_trainer._core.texts import is_number, parse_json, shown
from generic_trainer.errors import DataError
from generic_trainer.validation._check import Result, Status, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_JSON_FILE, _HTML_FILE = "report.json", "report.html"
_EXAMPLE_FILE = re.compile(r"example-\d{1,4}\.pbtxt")
_SECONDS = "Time taken"
_UNITS = ("bytes", "kB", "MB", "GB", "TB")
_ORDER = {"pass": 0, "skip": 0, "warn": 1, "fail": 2}  # what matters stands next to the verdict
_STYLES = {"pass": "green", "fail": "bold red", "warn": "yellow", "skip": "dim"}


def is_report_file(name: str) -> bool:
    """Returns whether a file of this name is one of those that a report is written to."""
    return name in (_JSON_FILE, _HTML_FILE) or _EXAMPLE_FILE.fullmatch(name) is not None


@dataclasses.dataclass(frozen=True)
class ValidationReport:
    """What was checked on a model and what came out.

    Attributes:
        model_dir: the directory as the caller knows it.
        results: one per check, in the order in which they ran.
        facts: what was measured on the way: `size_bytes`, `files`, `signatures`, `latency_ms`,
            `memory_mb`, `tensorflow_version`, `saved_by_tensorflow`, `seconds`, ...; a fact is
            absent when the check that measures it did not run. `unprotected`: what the system
            does not allow to keep the checked model from.
    """

    model_dir: str
    results: tuple[Result, ...]
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "facts", _printable(self.facts))

    @property
    def passed(self) -> bool:
        """Whether no check failed; warnings do not count."""
        return not self.failures

    @property
    def failures(self) -> tuple[Result, ...]:
        """The results whose status is `"fail"`."""
        return self._with_status("fail")

    @property
    def warnings(self) -> tuple[Result, ...]:
        """The results whose status is `"warn"`."""
        return self._with_status("warn")

    @property
    def files(self) -> dict[str, str]:
        """The files of the report, name → text: JSON, HTML, and each example that fails."""
        whole = {_JSON_FILE: self.to_json(), _HTML_FILE: self.to_html()}
        return {**whole, **self.failing_examples}

    @property
    def failing_examples(self) -> Mapping[str, str]:
        """Name of a file → `tf.train.Example` in text format that a signature fails with."""
        kept = self.facts.get("failing_examples", {})
        # A report of any origin names files; none lies elsewhere than beside it.
        return {name: text for name, text in kept.items() if _EXAMPLE_FILE.fullmatch(name)}

    def __getitem__(self, check_name: str) -> Result:
        """Returns the result of one check.

        Raises:
            KeyError: no such check ran.
        """
        return {result.name: result for result in self.results}[check_name]

    def to_json(self) -> str:
        """Returns a JSON object with `passed`, `model_dir`, `facts` and `results`."""
        plain = {
            "passed": self.passed,
            "model_dir": self.model_dir,
            "facts": dict(self.facts),
            "results": [dataclasses.asdict(result) for result in self.results],
        }
        return json.dumps(plain, indent=2)

    @classmethod
    def from_json(cls, text: str) -> ValidationReport:
        """Reads what `to_json` wrote.

        Raises:
            DataError: the text is no report.
        """
        try:
            plain = parse_json(text)
            results = tuple(Result(**result) for result in plain["results"])
            report = cls(plain["model_dir"], results, plain["facts"])
            if not all(isinstance(text, str) for text in report.failing_examples.values()):
                raise ValueError("an example is no text")
            if not all(map(_is_whole, results)):
                raise ValueError("a result has values of other types")
            _described(report.facts)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"Expected what ValidationReport.to_json has written, but got {shown(text)} "
                f"({type(error).__name__}: {error})."
            ) from error
        return report

    def to_html(self, run: str = "") -> str:
        """Returns a self-contained HTML page; whatever a model says in it is escaped.

        Args:
            run: what to show of the run that trained the model, as HTML.
        """
        import jinja2
        from markupsafe import Markup

        environment = jinja2.Environment(
            loader=jinja2.PackageLoader("generic_trainer.validation", "templates"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
        statuses = ("fail", "warn", "pass", "skip")
        counts = {status: len(self._with_status(status)) for status in statuses}
        template = environment.get_template("validation.html")
        return template.render(
            report=self, counts=counts, facts=_described(self.facts), run=Markup(run)
        )

    def summary(self) -> str:
        """Returns the failures with their remedies as text, or one line when there are none."""
        if self.passed:
            ran = sum(result.status != "skip" for result in self.results)
            took = f" in {self.facts['seconds']:.1f} s" if "seconds" in self.facts else ""
            return (
                f"{self.model_dir} passed {ran} checks{took}, {len(self.warnings)} with a warning"
            )
        return "\n".join(
            f"{result.name}: {result.message}\n    → {result.remedy}" for result in self.failures
        )

    def _with_status(self, status: str) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.status == status)


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
        table.add_row(Text(result.status.upper(), style=style), Text(result.name), _message(result))
    console.print(table)
    console.print()
    for label, value in _described(report.facts):
        console.print(Text.assemble((f"{label}: ", "dim"), value))
    failed, warned = len(report.failures), len(report.warnings)
    if report.passed:
        console.print(f"[bold green]PASSED[/] with {warned} warning{'s' * (warned != 1)}")
    else:
        console.print(f"[bold red]FAILED[/] {failed} check{'s' * (failed != 1)}")


def differences(before: ValidationReport, after: ValidationReport) -> list[dict[str, str]]:
    """Returns how a model differs from another one, by what was measured and checked on both.

    Returns:
        Mappings with `what`, `before` and `after`: measured values that are not the same, then
        checks of another outcome.
    """
    old, new = (
        dict(_described(report.facts))
        | {result.name: result.status for result in report.results if result.name != "base_model"}
        for report in (before, after)
    )
    return [
        {"what": what, "before": old.get(what, "-"), "after": new.get(what, "-")}
        for what in dict.fromkeys((*old, *new))
        if old.get(what) != new.get(what) and what != _SECONDS
    ]


def _printable(fact: Any) -> Any:
    """Returns a fact with every text in it fit to be shown: names are a model's own."""
    if isinstance(fact, str):
        return printable(fact)
    if isinstance(fact, Mapping):
        return {_printable(key): _printable(value) for key, value in fact.items()}
    if isinstance(fact, (list, tuple)):
        return type(fact)(map(_printable, fact))
    return fact


def _message(result: Result) -> Text:
    """Returns what was found: one line of it where all is well, everything where it is not."""
    from rich.text import Text

    if result.status in ("pass", "skip"):
        line = " ".join(result.message.split())
        return Text(line, style="dim", no_wrap=True, overflow="ellipsis")
    message = Text(result.message, overflow="fold")
    return message.append(f"\n→ {result.remedy}", style="cyan") if result.remedy else message


def _described(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns label and value for every fact that a reader wants, in reading order."""
    hidden = {None: "", True: "yes", False: "no"}[facts.get("original_hidden")]
    rows = [
        ("Size", _size(facts)),
        ("Signatures", ", ".join(facts.get("signatures", ()))),
        ("Latency, one example", _number(facts, "latency_ms", "ms")),
        ("Memory to load and score", _number(facts, "memory_mb", "MiB")),
        ("Other formats", "\n".join(facts.get("formats", ()))),
        ("Saved by TensorFlow", facts.get("saved_by_tensorflow", "")),
        ("Checked with TensorFlow", facts.get("tensorflow_version", "")),
        ("Original directory hidden", hidden),
        ("Checked without protection from", ", ".join(facts.get("unprotected", ()))),
        ("Goodput of the training", f"{facts['goodput']:.1%}" if "goodput" in facts else ""),
        ("Restarts of the training", _number(facts, "restarts", "")),
        ("Steps lost", _number(facts, "steps_lost", "")),
        (_SECONDS, _number(facts, "seconds", "s")),
    ]
    return [(label, value) for label, value in rows if value]


def _number(facts: Mapping[str, Any], key: str, unit: str) -> str:
    return f"{facts[key]:.4g} {unit}".rstrip() if key in facts else ""


def _size(facts: Mapping[str, Any]) -> str:
    if "size_bytes" not in facts:
        return ""
    size, unit = float(facts["size_bytes"]), 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {_UNITS[unit]} in {facts.get('files', '?')} files"


def _is_whole(result: Result) -> bool:
    texts = (result.name, result.message, result.remedy)
    return (
        all(isinstance(text, str) for text in texts)
        and result.status in get_args(Status)
        and is_number(result.seconds)
    )
