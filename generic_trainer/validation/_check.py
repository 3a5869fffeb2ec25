"""The one interface that every check implements.

A check is a generator function in a file of its own, which yields what it found and nothing when
all is well::

    @check("serve_tag", needs=("parses",))
    def serve_tag(model: ModelUnderTest) -> Iterator[Finding]:
        '''The SavedModel has one MetaGraph tagged exactly {serve}.'''
        if ...:
            yield fail("...", remedy="...")
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from generic_trainer.validation._result import Finding, Result, fail, merge

if TYPE_CHECKING:
    from generic_trainer.validation._model import ModelUnderTest

__all__ = ["Check", "CheckFunction", "check"]

CheckFunction = Callable[["ModelUnderTest"], Iterator[Finding]]


@dataclasses.dataclass(frozen=True)
class Check:
    """A named check.

    Attributes:
        name: the key in `ServingContract.severities` and in the report.
        summary: what a model that passes fulfils, one sentence.
        function: yields the findings.
        needs: checks without whose success this one cannot run.
    """

    name: str
    summary: str
    function: CheckFunction
    needs: tuple[str, ...] = ()

    def run(self, model: ModelUnderTest) -> Result:
        """Runs the check; an exception that escapes it is a failure, never an error here."""
        started = time.perf_counter()
        findings: list[Finding] = []
        try:
            findings.extend(self.function(model))
        except Exception as error:
            findings.append(_escaped(error))
        result = merge(self.name, findings, time.perf_counter() - started)
        return result if findings else dataclasses.replace(result, message=self.summary)


def check(name: str, needs: tuple[str, ...] = ()) -> Callable[[CheckFunction], Check]:
    """Makes a `Check` of a generator function; its docstring's first line is the summary."""

    def decorate(function: CheckFunction) -> Check:
        summary = (function.__doc__ or "").strip().splitlines()[0]
        return Check(name, summary, function, needs)

    return decorate


def _escaped(error: Exception) -> Finding:
    lines = str(error).strip().splitlines() or [""]
    return fail(
        f"the check ended with {type(error).__name__}: {lines[0][:500]}",
        "see why this part of the model cannot be examined; if the model is right, set "
        "severities={<check>: 'skip'} in the contract and report the case",
    )
