"""A check, what it finds, and the result that goes into the report.

A check is a generator function, which yields what it finds and nothing when all is well::

    @check("serve_tag", needs=("parses",))
    def serve_tag(model: ModelUnderTest) -> Iterator[Finding]:
        '''The SavedModel has one MetaGraph tagged exactly {serve}.

        Why that matters: who would fail without it, and how.

        Example: a model that fails the check.
        '''
        if ...:
            yield fail("...", remedy="...")

The docstring is what `generic-trainer explain` and the documents say of the check.
"""

from __future__ import annotations

import dataclasses
import inspect
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from generic_trainer._core.texts import reason_of

if TYPE_CHECKING:
    from generic_trainer.validation._model import ModelUnderTest

Status = Literal["pass", "fail", "warn", "skip"]
CheckFunction = Callable[["ModelUnderTest"], Iterator["Finding"]]

# Of Unicode: control characters and surrogates; what turns the direction of writing.
_CATEGORIES = ("Cc", "Cs")
_DIRECTIONS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
_WORST_FIRST: tuple[Status, ...] = ("fail", "warn", "pass", "skip")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that a check has to say; a check may have several."""

    status: Status
    message: str
    remedy: str = ""
    may_be_meant: bool = False


def fail(message: str, remedy: str) -> Finding:
    """The model must not be published."""
    return Finding("fail", message, remedy)


def warn(message: str, remedy: str) -> Finding:
    """The model can be published, and somebody should know."""
    return Finding("warn", message, remedy)


def per_row(model: ModelUnderTest, message: str, remedy: str) -> Finding:
    """Only consumers mind that match outputs with examples row by row: Evaluator, BulkInferrer."""
    matches_rows = model.contract.matches_rows
    if matches_rows is None:
        message = f"{message}; an Evaluator or a BulkInferrer would fail or go wrong"
        return Finding("warn", message, remedy, may_be_meant=True)
    return Finding("fail", message, remedy, may_be_meant=True) if matches_rows else note(message)


def of_rows(model: ModelUnderTest, certain: bool, message: str, remedy: str) -> Finding:
    """Fails where a row's own score is wrong for consumers that want it, and warns elsewhere."""
    is_wrong = certain and model.contract.matches_rows
    return Finding("fail" if is_wrong else "warn", message, remedy, may_be_meant=True)


def skip(message: str) -> Finding:
    """The check does not apply, or what it needs is missing."""
    return Finding("skip", message)


def note(message: str) -> Finding:
    """Nothing is wrong; worth a line in the report."""
    return Finding("pass", message)


@dataclasses.dataclass(frozen=True)
class Result:
    """The verdict of one check, fit to be shown whatever the model has had it say.

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

    def __post_init__(self) -> None:
        for name in ("name", "message", "remedy"):
            object.__setattr__(self, name, printable(getattr(self, name), keep="\n\t"))


def printable(text: str, keep: str = "") -> str:
    """Returns a text in which nothing commands a terminal or turns the order of what is read.

    Args:
        text: perhaps by the author of a model, such as the name of a signature.
        keep: control characters that may stay.

    Returns:
        The text with control characters, surrogates and what sets the direction of writing as
        escapes of Python.
    """
    return "".join(
        each.encode("unicode_escape").decode()
        if each not in keep
        and (
            unicodedata.category(each) in _CATEGORIES
            or unicodedata.bidirectional(each) in _DIRECTIONS
        )
        else each
        for each in text
    )


def merge(name: str, findings: Iterable[Finding], seconds: float = 0.0) -> Result:
    """Makes one `Result` of all findings of a check: the worst status wins, none means pass."""
    listed = list(findings)
    statuses = {finding.status for finding in listed}
    shown = [f for f in listed if f.status in ("fail", "warn")] or listed
    remedies = [f.remedy for f in shown if f.remedy]
    if any(f.may_be_meant for f in shown):
        remedies.append(
            f"if it is meant to be so: contract=ServingContract(severities={{{name!r}: 'skip'}})"
        )
    return Result(
        name=name,
        status=next((status for status in _WORST_FIRST if status in statuses), "pass"),
        message="\n".join(f.message for f in shown),
        remedy="\n".join(dict.fromkeys(remedies)),
        seconds=seconds,
    )


@dataclasses.dataclass(frozen=True)
class Check:
    """A named check.

    Attributes:
        name: the key in `ServingContract.severities` and in the report.
        summary: what a model that passes fulfils, one sentence.
        explanation: why it exists, and an example that fails it; paragraphs of Markdown.
        function: yields the findings.
        needs: checks without whose success this one cannot run.
        is_advisory: whether its worst is a warning, even where the process dies of it.
    """

    name: str
    summary: str
    explanation: str
    function: CheckFunction
    needs: tuple[str, ...] = ()
    is_advisory: bool = False

    @property
    def how_to_silence(self) -> str:
        """What to write to have the check warn, or not run."""
        skip = f'`ServingContract(severities={{"{self.name}": "skip"}})` leaves it out'
        return f"{skip}; " + ("it warns at most." if self.is_advisory else '`"warn"` has it warn.')

    def blocked_by(self, done: Mapping[str, str]) -> list[str]:
        """Returns which of its needs did not pass; `done`: check → its outcome."""
        return [name for name in self.needs if done.get(name) in ("fail", "blocked")]

    def run(self, model: ModelUnderTest) -> Result:
        """Runs the check; an exception that escapes it is a failure, never an error here."""
        started = time.perf_counter()
        findings: list[Finding] = []
        try:
            findings.extend(self.function(model))
        except Exception as error:
            findings.append(
                fail(
                    f"the check ended with {reason_of(error)}",
                    "see why this part of the model cannot be examined; if the model is right, set "
                    "severities={<check>: 'skip'} in the contract and report the case",
                )
            )
        result = merge(self.name, findings, time.perf_counter() - started)
        return result if findings else dataclasses.replace(result, message=self.summary)


def check(
    name: str, needs: tuple[str, ...] = (), *, is_advisory: bool = False
) -> Callable[[CheckFunction], Check]:
    """Makes a `Check` of a generator function; its docstring says what for."""

    def decorate(function: CheckFunction) -> Check:
        summary, _, explanation = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
        return Check(name, summary, explanation, function, needs, is_advisory)

    return decorate
