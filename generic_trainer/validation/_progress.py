"""How far one validation is, across the processes that it may take: a check can kill its own."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from generic_trainer.errors import ConfigurationError
from generic_trainer.validation._contract import ServingContract, Severity
from generic_trainer.validation._report import ValidationReport
from generic_trainer.validation._result import Result

__all__ = ["Progress"]


@dataclasses.dataclass
class Progress:
    """What is known of one model so far.

    Attributes:
        model_dir: the model.
        contract: what it must fulfil.
        results: of the checks that have ended, in their order.
        facts: what the checks have measured.
        done: check → its outcome, for the process that goes on after one that died.
        checking: the check that runs now.
        complete: whether no check is left.
    """

    model_dir: str
    contract: ServingContract
    results: list[Result] = dataclasses.field(default_factory=list)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    done: dict[str, str] = dataclasses.field(default_factory=dict)
    checking: str | None = None
    complete: bool = False

    def request(self, scratch: str, memory_limit_mb: float | None) -> str:
        model_dir = self.model_dir
        return json.dumps(
            {
                "model_dir": model_dir if "://" in model_dir else str(Path(model_dir).absolute()),
                "contract": _portable(self.contract, Path(scratch)).to_json(),
                "scratch": scratch,
                "memory_limit_mb": memory_limit_mb,
                "done": self.done,
            }
        )

    def take(self, event: dict[str, Any]) -> None:
        if event["event"] == "start":
            self.checking = event["check"]
        elif event["event"] == "result":
            result = Result(**event["result"])
            self.done[result.name] = event["outcome"]
            self.facts.update(event["facts"])
            self.results.append(result)
        elif event["event"] == "complete":
            self.facts.update(event["facts"])
            self.complete = True

    def fail(self, reason: str, last_words: str) -> None:
        """Charges the death of the process to the check that was running."""
        name = self.checking
        if name is None or name in self.done:
            raise ConfigurationError(
                f"the checks on {self.model_dir} could not run: {reason}\n{last_words}"
            )
        self.done[name] = "fail"
        self.results.append(
            Result(
                name,
                "fail",
                f"{reason}. Last words: {last_words[-600:] or 'none'}",
                "the model takes down the process that loads it; a consumer would go down with it",
            )
        )

    def report(self) -> ValidationReport:
        severities = self.contract.severities
        results = tuple(
            _with_severity(result, severities.get(result.name)) for result in self.results
        )
        return ValidationReport(self.model_dir, results, self.facts)


def _portable(contract: ServingContract, scratch: Path) -> ServingContract:
    """Makes paths absolute, as the process works elsewhere, and puts protos into files."""
    changes: dict[str, Any] = {}
    for name in ("examples", "schema", "eval_config", "base_model"):
        value = getattr(contract, name)
        if hasattr(value, "SerializeToString"):
            file = scratch / f"{name}.pbtxt"
            file.write_text(str(value), encoding="utf-8")
            changes[name] = str(file)
        elif isinstance(value, (str, os.PathLike)) and "://" not in str(value):
            changes[name] = os.path.abspath(value)
    return dataclasses.replace(contract, **changes)


def _with_severity(result: Result, severity: Severity | None) -> Result:
    if severity is None or result.status in ("pass", "skip"):
        return result
    return dataclasses.replace(result, status=severity)
