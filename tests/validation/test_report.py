"""A report as JSON, as an HTML page and as a table on the terminal."""

import io
import json
import math
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console

from generic_trainer.errors import DataError
from generic_trainer.validation import Result, ValidationReport, print_report
from generic_trainer.validation._predictions import predictions_fact, predictions_of

FAILED = ValidationReport(
    "/models/<b>taxi</b>",
    (
        Result("presence", "pass", "all there"),
        Result("loads", "fail", "cannot\nbe <script>alert(1)</script> loaded", "track it", 1.5),
        Result("devices", "warn", "pinned", "unpin"),
        Result("warmup", "skip", "no file"),
    ),
    {"size_bytes": 1_234_567, "files": 4, "latency_ms": 0.25, "original_hidden": True},
)
PASSED = ValidationReport(
    "/models/taxi", FAILED.results[:1], {"seconds": 1.0, "unprotected": ["writing", "connections"]}
)


class _Links(HTMLParser):
    """Collects the tags, and everything that a page would have to fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]


def test_examples_that_fail_lie_beside_the_report() -> None:
    examples = {"example-1.pbtxt": "features { }", "../example-1.pbtxt": "", "report.json": ""}
    report = ValidationReport("/models/taxi", (), {"failing_examples": examples})
    assert set(report.files) == {"report.json", "report.html", "example-1.pbtxt"}
    assert report.files["example-1.pbtxt"] == "features { }"
    assert ValidationReport.from_json(report.to_json()) == report


NO_REPORTS = [
    "",
    PASSED.to_json().replace('"seconds": 1.0', '"failing_examples": []'),
    PASSED.to_json().replace('"seconds": 1.0', '"failing_examples": {"example-1.pbtxt": 1}'),
    PASSED.to_json().replace('"seconds": 1.0', '"predictions": []'),
    PASSED.to_json().replace(
        '"seconds": 1.0',
        '"predictions": {"label": "", "examples": [], "classes": [1], "counts": [[1, 2]]}',
    ),
    "[]",
    "{}",
    FAILED.to_json().replace('"fail"', '"bad"'),
    FAILED.to_json().replace("1234567", "[]"),
    FAILED.to_json().replace('"remedy"', '"cure"'),
]


@pytest.mark.parametrize("text", NO_REPORTS)
def test_json_that_is_no_report(text: str) -> None:
    with pytest.raises(DataError, match=r"Expected what ValidationReport\.to_json has written"):
        ValidationReport.from_json(text)


def test_html_needs_nothing_but_itself_and_escapes() -> None:
    page = FAILED.to_html()
    parser = _Links()
    parser.feed(page)
    assert not parser.fetched
    assert "script" not in parser.tags
    assert "&lt;script&gt;" in page
    assert "/models/&lt;b&gt;taxi&lt;/b&gt;" in page
    # Failures come first.
    order = [page.index(f'<td class="check">{name}') for name in ("loads", "devices", "presence")]
    assert order == sorted(order)
    assert "track it" in page
    assert "1.23 MB in 4 files" in page


def test_predictions_are_drawn_and_escaped() -> None:
    evil = "<script>'\""
    classes = {
        "label": evil, "examples": [[evil, "b"]],
        "classes": ["b", evil], "counts": [[7, 1], [0, 3]],
    }  # fmt: skip
    numbers = {
        "label": evil, "examples": [[1.0, 2.0]], "points": [[1.0, 2.0], [float("nan"), 1e305]],
    }  # fmt: skip
    for fact in (classes, numbers):
        report = ValidationReport("/models/taxi", (), {"predictions": fact})
        page = ValidationReport.from_json(report.to_json()).to_html()
        assert evil not in page and "&lt;script&gt;" in page and "nan" not in page
    assert '<circle cx="190.0" cy="8.0" r="3"' in page  # 1 of 0 to 2, predicted 2
    page = ValidationReport("/models/taxi", (), {"predictions": classes}).to_html()
    assert [count for count in (">7<", ">1<", ">0<", ">3<") if count not in page] == []


def test_what_a_model_says_commands_no_terminal() -> None:
    evil = "a\x1b]0;title\x07\x1b[2J\x9b1A\r\x7f\u202eb\ud800"
    report = ValidationReport(
        "/models/taxi",
        (Result("loads", "fail", f"cannot load {evil}\n\tat all", f"rename {evil}"),),
        {"signatures": [evil, "caf\u00e9 \u200d\u4e2d"], "rehearsed_metrics": {evil: 1.0}},
    )
    output = io.StringIO()
    print_report(report, Console(file=output, width=400))
    shown = [output.getvalue(), report.to_html(), report.summary(), *report.facts["signatures"]]
    shown += report.facts["rehearsed_metrics"]
    for text in shown:
        assert not set(text) & set(evil) - set("0;title[2J1Aab]")
        assert "caf\u00e9 \u200d\u4e2d" in text or "\\x1b]0;title\\x07" in text
    assert "\n\tat all" in report.summary()
    assert "\\u202eb\\ud800" in report.summary()


@pytest.mark.parametrize(("report", "verdict"), [(FAILED, "FAILED 1 check"), (PASSED, "PASSED")])
def test_terminal(report: ValidationReport, verdict: str) -> None:
    assert ValidationReport.from_json(report.to_json()) == report
    console = Console(file=io.StringIO(), width=100)
    print_report(report, console)
    printed = console.file.getvalue()
    assert printed.strip().splitlines()[-1].startswith(verdict)
    for result in report.results:
        assert result.name in printed
        assert result.remedy in printed
    told = "Checked without protection from: writing, connections"
    assert (told in printed) == ("unprotected" in report.facts)


def test_predictions_that_are_no_numbers_leave_the_report_json() -> None:
    labels, answers = np.array([1.0, math.nan, 3.0]), np.array([1.5, 2.0, math.inf])
    fact = predictions_fact("price", labels, answers)
    found = predictions_of(json.loads(json.dumps(fact, allow_nan=False)))
    assert found is not None and list(found.points) == [(1.0, 1.5)]
    assert found.rows[1] == ("nan", "2")
