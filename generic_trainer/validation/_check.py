"""A check, its findings, and the result that goes into the report.

A check is a generator function, which yields findings, and nothing if all is well. It raises `Skip`
if it does not apply::

    @check(needs="parses")
    def serve_tag(model: ModelUnderTest) -> Findings:
        '''The SavedModel has one MetaGraph tagged exactly {serve}.

        The reason: the consumer that would fail without it, and how.

        Example: a model that fails the check.
        '''
        if ...:
            yield fail("...", remedy="...")

That registers it: contracts, reports, `generic-trainer explain` and the documents have no other
list. The last two show the docstring. Checks of a file run in the order of their definition;
`after` has one follow a check of another file instead.
"""

import dataclasses
import functools
import importlib
import inspect
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from generic_trainer._core.texts import reason_of

Status = Literal["pass", "fail", "warn", "skip"]
Format = Literal["saved_model", "other", "any"]
Decider = Literal["code", "rows", "weights"]
FORMATS: tuple[Format, ...] = ("saved_model", "other")
ANY: tuple[Format, ...] = (*FORMATS, "any")

# Of Unicode: control characters, characters that turn the direction of writing, and surrogates.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_WORST_FIRST: tuple[Status, ...] = ("fail", "warn", "pass", "skip")


class Skip(Exception):
    """Raised by a check that does not apply, or whose inputs are missing, with the reason."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One finding of a check, which may have several."""

    status: Status
    message: str
    remedy: str = ""
    may_be_meant: bool = False


Findings = Iterator[Finding]
CheckFunction = Callable[[Any], Findings]  # of a `ModelUnderTest`

fail = functools.partial(Finding, "fail")  # the model must not be published
warn = functools.partial(Finding, "warn")  # it can be published, but its owner should know
note = functools.partial(Finding, "pass")  # all is well; the message is a line of the report
untested = functools.partial(Finding, "skip")  # with the reason; `Skip` if nothing at all is tested


def if_concerned(concerned: bool | None, message: str, harm: str, remedy: str) -> Finding:
    """Fails for consumers that a finding concerns; warns of the harm if they are unknown."""
    if concerned is None:
        return warn(f"{message}; {harm}", remedy, may_be_meant=True)
    return fail(message, remedy, may_be_meant=True) if concerned else note(message)


@dataclasses.dataclass(frozen=True)
class Result:
    """The verdict of one check, safe to print although a model may have written parts of it.

    Attributes:
        name: the check's name, the key in `ServingContract.severities`.
        status: `"pass"`, `"fail"`, `"warn"` or `"skip"`.
        message: the expected and the actual state, and its place; one line per finding.
        remedy: the action to take; empty for a pass.
        seconds: how long the check took.
    """

    name: str
    status: Status
    message: str = ""
    remedy: str = ""
    seconds: float = 0.0

    __pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False}  # noqa: RUF012

    def __post_init__(self) -> None:
        for name in ("name", "message", "remedy"):
            object.__setattr__(self, name, printable(getattr(self, name), keep="\n\t"))


def printable(text: str, keep: str = "") -> str:
    """Returns a text that can neither command a terminal nor reorder the displayed characters.

    Args:
        text: perhaps by the author of a model, such as the name of a signature.
        keep: control characters that may stay.

    Returns:
        The text with control characters, surrogates and marks of the writing direction as Python
        escapes.
    """

    def safe(match: re.Match[str]) -> str:
        return match[0] if match[0] in keep else match[0].encode("unicode_escape").decode()

    return _UNSAFE.sub(safe, text)


def merge(name: str, findings: Iterable[Finding], seconds: float = 0.0) -> Result:
    """Makes one `Result` of all findings of a check: the worst status wins, none means pass."""
    listed = list(findings)
    statuses = {finding.status for finding in listed}
    shown = [f for f in listed if f.status in ("fail", "warn")] or listed
    remedies = [f.remedy for f in shown if f.remedy]
    if any(f.may_be_meant for f in shown):
        remedies.append(
            f"if this is intended, set contract=ServingContract(severities={{{name!r}: 'skip'}})"
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
        summary: one sentence that is true of a model that passes.
        explanation: the reason, and an example that fails; paragraphs of Markdown.
        function: yields the findings.
        needs: checks that must pass before this one can run.
        after: the check that it directly follows; by default the one above it in its file, and for
            the first of a file None: the end. An empty string starts the list.
        is_advisory: whether its worst is a warning, even if the process dies of it.
        formats: of the exports that it checks: SavedModels; those in another format; `"any"`, of
            which the contract requires only that they exist.
        decided_by: `"code"` if training cannot change the outcome; `"rows"` if it cannot in a model
            that scores, because the same weights score different rows; else `"weights"`.
    """

    name: str
    summary: str
    explanation: str
    function: CheckFunction
    needs: tuple[str, ...] = ()
    after: str | None = None
    is_advisory: bool = False
    formats: tuple[Format, ...] = ("saved_model",)
    decided_by: Decider = "weights"

    @property
    def how_to_silence(self) -> str:
        """The setting that makes the check warn, or skips it."""
        skip = f'`ServingContract(severities={{"{self.name}": "skip"}})` leaves it out'
        return f"{skip}; " + ("it warns at most." if self.is_advisory else '`"warn"` has it warn.')

    def blocked_by(self, done: Mapping[str, Status]) -> str | None:
        """Returns the failed check without which this one cannot run; `done`: check → status."""
        for need in self.needs:
            if failed := need if done.get(need) == "fail" else CHECKS[need].blocked_by(done):
                return failed
        return None

    def run(self, model: Any) -> Result:
        """Runs the check; an exception that escapes it is a failure, never an error here."""
        started = time.perf_counter()
        findings: list[Finding] = []
        try:
            findings.extend(self.function(model))
        except Skip as reason:
            findings.append(Finding("skip", str(reason)))
        except Exception as error:
            message = f"the check ended with {reason_of(error)}"
            remedy = "find out why this part of the model cannot be examined"
            findings.append(Finding("warn" if self.is_advisory else "fail", message, remedy, True))
        result = merge(self.name, findings, time.perf_counter() - started)
        return result if findings else dataclasses.replace(result, message=self.summary)


CHECKS: dict[str, Check] = {}  # name → check, of all modules that are imported


def check(*, needs: str = "", **arguments: Any) -> Callable[[CheckFunction], Check]:
    """Registers a generator function as a `Check` of its name; its docstring has the texts.

    Args:
        needs: names of the checks that must pass before this one can run.
        **arguments: further fields of the `Check`: what decides it, what it applies to.
    """

    def decorate(function: CheckFunction) -> Check:
        name = function.__name__
        fields: dict[str, Any] = {"needs": tuple(needs.split())}
        summary, _, explanation = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
        for above in CHECKS.values():
            if above.function.__module__ == function.__module__:
                fields["after"] = above.name
        CHECKS[name] = Check(name, summary, explanation, function, **fields | arguments)
        return CHECKS[name]

    return decorate


def all_checks() -> tuple[Check, ...]:
    """Returns every check, in the order in which they run on a SavedModel."""
    # By name and not before they are needed: they import this module, and NumPy.
    importlib.import_module(f"{__package__}._checks")
    followers: dict[str | None, list[Check]] = {}
    for registered in CHECKS.values():
        followers.setdefault(registered.after, []).append(registered)
    ordered: list[Check] = []
    waiting = [*reversed(followers.get(None, [])), *followers[""]]
    while waiting:
        ordered.append(waiting.pop())
        waiting += reversed(followers.get(ordered[-1].name, []))
    return tuple(ordered)
