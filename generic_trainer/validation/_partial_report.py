"""A report while its checks run, across the processes that it may take."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from generic_trainer._core.files import absolute, is_remote
from generic_trainer.errors import ConfigurationError
from generic_trainer.validation._check import Result
from generic_trainer.validation._contract import SOURCES, ServingContract, remote_sources
from generic_trainer.validation._report import ValidationReport


@dataclasses.dataclass
class PartialReport:
    """The checks that are done, and the one that runs.

    Attributes:
        done: check → its outcome, for the process that goes on after one that died.
        checking: the check that runs now.
        is_advisory: whether its worst is a warning.
        complete: whether no check is left.
    """

    model_dir: str
    contract: ServingContract
    results: list[Result] = dataclasses.field(default_factory=list)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    done: dict[str, str] = dataclasses.field(default_factory=dict)
    checking: str | None = None
    is_advisory: bool = False
    complete: bool = False

    @property
    def is_remote(self) -> bool:
        """Whether something must be fetched for a process that looks at the model."""
        return is_remote(self.model_dir) or bool(remote_sources(self.contract))

    def request(self, scratch: str, memory_limit_mb: float | None) -> dict[str, Any]:
        """Returns the request to `_runner`, whose `done` grows with this object's."""
        return {
            "model_dir": absolute(self.model_dir),
            "contract": _portable(self.contract, Path(scratch)).to_json(),
            "scratch": scratch,
            "memory_limit_mb": memory_limit_mb,
            "done": self.done,
        }

    def take(self, event: dict[str, Any]) -> None:
        """Notes an event of `_runner`."""
        self.facts.update(event.get("facts", {}))
        if event["event"] == "start":
            self.checking, self.is_advisory = event["check"], event["advisory"]
        elif event["event"] == "result":
            result = Result(**event["result"])
            self.done[result.name] = event["outcome"]
            self.results.append(result)
        self.complete = event["event"] == "complete"

    def fail(self, reason: str, last_words: str) -> None:
        """Charges the death of the process to the check that was running.

        Raises:
            ConfigurationError: it died before any check.
        """
        name = self.checking
        if name is None or name in self.done:
            raise ConfigurationError(
                f"the checks on {self.model_dir} could not run: {reason}\n{last_words}"
            )
        self.done[name] = "warn" if self.is_advisory else "fail"
        self.results.append(
            Result(
                name,
                "warn" if self.is_advisory else "fail",
                f"{reason}. Last words: {last_words[-600:] or 'none'}",
                "the model takes down the process that loads it; a consumer would go down with it",
            )
        )

    def report(self) -> ValidationReport:
        """Returns the report, with the severities that the contract asks for."""
        severities = self.contract.severities
        results = (
            dataclasses.replace(result, status=severities.get(result.name, result.status))
            if result.status in ("fail", "warn")
            else result
            for result in self.results
        )
        return ValidationReport(self.model_dir, tuple(results), self.facts)


def _portable(contract: ServingContract, scratch: Path) -> ServingContract:
    """Makes paths absolute, as the process works elsewhere, and puts protos into files."""
    changes: dict[str, Any] = {}
    for name in SOURCES:
        value = getattr(contract, name)
        if hasattr(value, "SerializeToString"):
            file = scratch / f"{name}.pbtxt"
            file.write_text(str(value), encoding="utf-8")
            changes[name] = str(file)
        elif isinstance(value, (str, os.PathLike)):
            changes[name] = absolute(os.fspath(value))
    return dataclasses.replace(contract, **changes)
