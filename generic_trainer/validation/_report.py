"""The outcome of all checks on one model: as JSON, as an HTML page, as a table on the terminal."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pydantic

from generic_trainer._core.texts import parse_json, reason_of, shown
from generic_trainer.errors import DataError
from generic_trainer.validation._check import Result, printable
from generic_trainer.validation._predictions import predictions_of

if TYPE_CHECKING:
    import jinja2
    from rich.console import Console
    from rich.text import Text

_JSON_FILE = "report.json"
_HTML_FILE = "report.html"
_EXAMPLE_FILE = re.compile(r"example-\d{1,4}\.pbtxt")
_SHOWN_CHARACTERS = 600  # of an example
# Label of a measurement, its fact, and its form for readers.
_FACTS = (
    ("Quality", "quality", "{}"),
    ("Size", "size_bytes", ""),
    ("Signatures", "signatures", ""),
    ("Rows scored", "rows_scored", "{}"),
    ("Latency, one example", "latency_ms", "{:.4g} ms"),
    ("Memory to load and score", "memory_mb", "{:.4g} MiB"),
    ("Saved by TensorFlow", "saved_by_tensorflow", "{}"),
    ("Oldest TensorFlow that can load it", "oldest_tensorflow", "{}"),
    ("Checked with TensorFlow", "tensorflow_version", "{}"),
    ("Original directory hidden", "original_hidden", ""),
    ("Checked without protection from", "unprotected", ""),
    ("Time taken", "seconds", "{:.4g} s"),
)
_ORDER = {"pass": 0, "skip": 0, "warn": 1, "fail": 2}  # failures are printed next to the verdict
_STYLES = {"pass": "green", "fail": "bold red", "warn": "yellow", "skip": "dim"}


def is_report_file(name: str) -> bool:
    """Returns whether a file of this name is one of those that a report is written to."""
    return name in (_JSON_FILE, _HTML_FILE) or _EXAMPLE_FILE.fullmatch(name) is not None


def keep_example(facts: dict[str, Any], example: Any) -> str:
    """Keeps an example for a file beside the report.

    Args:
        facts: of the report.
        example: a `tf.train.Example` that a signature fails with.

    Returns:
        The name of the file, and the first part of its text.
    """
    from google.protobuf import text_format

    text = text_format.MessageToString(example, as_one_line=True)
    kept = facts.setdefault("failing_examples", {})
    file = f"example-{len(kept) + 1}.pbtxt"
    kept[file] = text
    return f"{file}: {text[:_SHOWN_CHARACTERS]}" + "..." * (len(text) > _SHOWN_CHARACTERS)


@dataclasses.dataclass(frozen=True)
class ValidationReport:
    """The results of all checks on a model.

    Attributes:
        model_dir: the directory as the caller knows it.
        results: one per check, in the order in which they ran.
        facts: measurements: `quality` of the predictions in words, with its numbers
            `eval_accuracy` and `constant_accuracy`, or `eval_mean_absolute_error` and
            `constant_mean_absolute_error`; `predictions`, some of them beside their labels, with
            the counts of a confusion matrix for classes; `size_bytes`, `files`, `signatures`,
            `rows_scored` (0 if consumers' signatures scored none), `latency_ms`, `memory_mb`,
            `tensorflow_version`, `saved_by_tensorflow`, `oldest_tensorflow`, `seconds`, ...; a
            fact is absent if the check that measures it did not run. `unprotected`: protections
            that the system lacks.
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
    def verdict(self) -> str:
        """`"failed"`, or `"passed"`, with a restriction if no row was scored."""
        if not self.passed:
            return "failed"
        is_untested = self.facts.get("rows_scored") == 0
        return "passed, but no row was scored" if is_untested else "passed"

    @property
    def failures(self) -> tuple[Result, ...]:
        """The results whose status is `"fail"`."""
        return tuple(result for result in self.results if result.status == "fail")

    @property
    def warnings(self) -> tuple[Result, ...]:
        """The results whose status is `"warn"`."""
        return tuple(result for result in self.results if result.status == "warn")

    @property
    def files(self) -> dict[str, str]:
        """The files of the report, name → text: JSON, HTML, and each example that fails."""
        whole = {_JSON_FILE: self.to_json(), _HTML_FILE: self.to_html()}
        return {**whole, **self.failing_examples}

    @property
    def failing_examples(self) -> Mapping[str, str]:
        """Name of a file → `tf.train.Example` in text format that a signature fails with."""
        kept = self.facts.get("failing_examples", {})
        # A report of any origin names files; all of them are beside it.
        return {name: text for name, text in kept.items() if _EXAMPLE_FILE.fullmatch(name)}

    def __getitem__(self, check_name: str) -> Result:
        """Returns the result of one check.

        Raises:
            KeyError: no such check ran.
        """
        return {result.name: result for result in self.results}[check_name]

    def to_json(self) -> str:
        """Returns a JSON object with `passed`, `verdict`, `model_dir`, `facts` and `results`."""
        plain = {
            "passed": self.passed,
            "verdict": self.verdict,
            "model_dir": self.model_dir,
            "facts": dict(self.facts),
            "results": [dataclasses.asdict(result) for result in self.results],
        }
        return json.dumps(plain, indent=2)

    @classmethod
    def from_json(cls, text: str) -> ValidationReport:
        """Reads what `to_json` wrote.

        Raises:
            DataError: the text is not a report.
        """
        try:
            plain = parse_json(text)
            results = pydantic.TypeAdapter(tuple[Result, ...]).validate_python(plain["results"])
            report = cls(plain["model_dir"], results, plain["facts"])
            is_text = (isinstance(text, str) for text in report.failing_examples.values())
            if not all(is_text):
                raise ValueError("a value has another type")
            _described(report.facts)
            predictions_of(report.facts)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                "Expected what ValidationReport.to_json has written, but got "
                f"{shown(text)} ({reason_of(error)})."
            ) from error
        return report

    def to_html(self, run: str = "") -> str:
        """Returns a self-contained HTML page, in which texts of the model are escaped.

        Args:
            run: HTML about the run that trained the model.
        """
        from markupsafe import Markup

        counts = collections.Counter(result.status for result in self.results)
        template = html_templates(__package__).get_template("validation.html")
        facts = _described(self.facts)
        predictions = predictions_of(self.facts)
        return template.render(
            report=self, counts=counts, facts=facts, predictions=predictions, run=Markup(run)
        )

    def summary(self) -> str:
        """Returns the failures with their remedies as text, or one line if all checks passed."""
        if self.passed:
            ran = sum(result.status != "skip" for result in self.results)
            took = f" in {self.facts['seconds']:.1f} s" if "seconds" in self.facts else ""
            passed = f"{self.model_dir} passed {ran} checks{took}"
            restriction = self.verdict.removeprefix("passed")
            passed += f", {len(self.warnings)} with a warning{restriction}"
            return f"{passed}; {self.facts['quality']}" if "quality" in self.facts else passed
        return "\n".join(
            f"{result.name}: {result.message}\n    → {result.remedy}" for result in self.failures
        )


@functools.cache
def html_templates(package: str) -> jinja2.Environment:
    """Returns the templates of pages in a package, which escape values.

    Those of this package, which has the style of all pages, can be included.
    """
    import jinja2

    loaders = [jinja2.PackageLoader(name, "templates") for name in (package, __package__)]
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def print_report(report: ValidationReport, console: Console | None = None) -> None:
    """Prints one line per check, the failures with their remedies, and the verdict last.

    Args:
        report: the report.
        console: the output; None for standard output.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = console or Console()
    table = Table.grid(padding=(0, 2, 0, 0))
    for result in sorted(report.results, key=lambda result: _ORDER[result.status]):
        status = Text(result.status.upper(), style=_STYLES[result.status])
        table.add_row(status, Text(result.name, no_wrap=True), _message(result))
    console.print(table)
    console.print()
    for label, value in _described(report.facts):
        console.print(Text.assemble((f"{label}: ", "dim"), value))
    failed = len(report.failures)
    warned = len(report.warnings)
    skipped = sum(result.status == "skip" for result in report.results)
    if not report.passed:
        console.print(f"[bold red]FAILED[/] {failed} check{'s' * (failed != 1)}")
        return
    _, _, restriction = report.verdict.partition(", ")
    passed = f"[bold yellow]PASSED, {restriction},[/]" if restriction else "[bold green]PASSED[/]"
    counts = f"{warned} warning{'s' * (warned != 1)}, {skipped} not tested"
    console.print(f"{passed} with {counts}")


def _printable(fact: Any) -> Any:
    """Returns a fact in which every text is safe to print: a model may have written it.

    Numbers that JSON does not have are words, as in the JSON of protobuf.
    """
    if isinstance(fact, str):
        return printable(fact)
    if isinstance(fact, float) and not math.isfinite(fact):
        if math.isnan(fact):
            return "NaN"
        return "Infinity" if fact > 0 else "-Infinity"
    if isinstance(fact, Mapping):
        return {_printable(key): _printable(value) for key, value in fact.items()}
    if isinstance(fact, (list, tuple)):
        return type(fact)(map(_printable, fact))
    return fact


def _message(result: Result) -> Text:
    """Returns the message of a result, shortened to one line if all is well."""
    from rich.text import Text

    if result.status in ("pass", "skip"):
        line = " ".join(result.message.split())
        return Text(line, style="dim", no_wrap=True, overflow="ellipsis")
    message = Text(result.message, overflow="fold")
    return message.append(f"\n→ {result.remedy}", style="cyan") if result.remedy else message


def _described(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns label and value of the facts for readers, in reading order."""
    rows = [(label, _as_text(facts, name, form)) for label, name, form in _FACTS if name in facts]
    return [(label, text) for label, text in rows if text]


def _as_text(facts: Mapping[str, Any], name: str, form: str) -> str:
    from rich.filesize import decimal

    value = facts[name]
    if name == "size_bytes":
        return f"{decimal(int(value), precision=2)} in {facts.get('files', '?')} files"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, (list, tuple)) else form.format(value)
