"""The outcome of all checks on one model."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from generic_trainer.validation._result import Result

__all__ = ["ValidationReport"]


@dataclasses.dataclass(frozen=True)
class ValidationReport:
    """What was checked on a model and what came out.

    Attributes:
        model_dir: the directory as it was given.
        results: one per check, in the order in which they ran.
        facts: what was measured on the way: `size_bytes`, `files`, `signatures`, `latency_ms`,
            `memory_mb`, `tensorflow_version`, `saved_by_tensorflow`, `seconds`, ...; a fact is
            absent when the check that measures it did not run.
    """

    model_dir: str
    results: tuple[Result, ...]
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

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

    def __getitem__(self, check_name: str) -> Result:
        """Returns the result of one check.

        Raises:
            KeyError: no such check ran.
        """
        for result in self.results:
            if result.name == check_name:
                return result
        raise KeyError(check_name)

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
        """Reads what `to_json` wrote."""
        plain = json.loads(text)
        results = tuple(Result(**result) for result in plain["results"])
        return cls(plain["model_dir"], results, plain["facts"])

    def to_html(self) -> str:
        """Returns a self-contained HTML page."""
        from generic_trainer.reports import render_html

        return render_html(self)

    def summary(self) -> str:
        """Returns the failures with their remedies as text, or one line when there are none."""
        if self.passed:
            ran = sum(result.status != "skip" for result in self.results)
            return f"{self.model_dir} passed {ran} checks with {len(self.warnings)} warnings"
        return "\n".join(
            f"{result.name}: {result.message}\n    → {result.remedy}" for result in self.failures
        )

    def _with_status(self, status: str) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.status == status)
