"""Checks models in another process and survives what they do to it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from generic_trainer.errors import ConfigurationError
from generic_trainer.validation._contract import ServingContract, Severity
from generic_trainer.validation._process import CheckingProcess
from generic_trainer.validation._report import ValidationReport
from generic_trainer.validation._result import Result
from generic_trainer.validation._server import ABORT

__all__ = ["Checker", "start_checker", "validate_saved_model"]

_ABORT_TIMEOUT_S = 30.0
_NO_CONTRACT = ServingContract(signatures=())


def validate_saved_model(
    model_dir: str,
    contract: ServingContract | None = None,
    *,
    timeout_s: float = 600.0,
    memory_limit_mb: float | None = None,
) -> ValidationReport:
    """Checks whether an exported model works for the consumers downstream.

    Every check runs in a process without the user's code, which sees the model at another path.
    What goes wrong there - an exception, a segmentation fault, an endless loop, memory running
    out - is a failed check in the report and never an error here.

    Args:
        model_dir: directory with `saved_model.pb`.
        contract: what is required. None requires what any consumer needs: readable files, a
            signature, ops that exist elsewhere, the same result on the same input, and so on.
        timeout_s: seconds that one check may take.
        memory_limit_mb: MiB that the checks may allocate; None for what is free.

    Raises:
        ConfigurationError: TensorFlow is missing, so that nothing can be checked.
    """
    with start_checker(timeout_s=timeout_s, memory_limit_mb=memory_limit_mb) as checker:
        return checker.validate(model_dir, contract)


def start_checker(
    *,
    timeout_s: float = 600.0,
    memory_limit_mb: float | None = None,
    preload: Sequence[str] = (),
) -> Checker:
    """Starts the checking process now, so that it is ready when the model is.

    ::

        with start_checker() as checker:
            train()
            report = checker.validate(model_dir, contract)

    Args:
        timeout_s: seconds that one check may take.
        memory_limit_mb: MiB that the checks on one model may allocate; None for what is free.
        preload: modules that the process imports as well while it starts; the rehearsal of an eval
            config needs `tensorflow_model_analysis`, which takes seconds to import.
    """
    return Checker(timeout_s, memory_limit_mb, preload)


class Checker:
    """A checking process that can take any number of models, one after another."""

    def __init__(
        self, timeout_s: float, memory_limit_mb: float | None, preload: Sequence[str] = ()
    ) -> None:
        self._timeout_s = timeout_s
        self._preload = tuple(preload)
        self._memory_limit_mb = memory_limit_mb
        self._scratch = Path(tempfile.mkdtemp(prefix="generic_trainer_checks_"))
        self._process = CheckingProcess(self._scratch, self._preload)

    def __enter__(self) -> Checker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process."""
        self._process.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def validate(self, model_dir: str, contract: ServingContract | None = None) -> ValidationReport:
        """Checks one model; see `validate_saved_model`."""
        started = time.perf_counter()
        run = _Run(str(model_dir), contract or _NO_CONTRACT)
        with tempfile.TemporaryDirectory(dir=self._scratch) as scratch:
            while not run.complete:
                self._attempt(run, scratch)
        run.facts["seconds"] = round(time.perf_counter() - started, 3)
        return run.report()

    def _attempt(self, run: _Run, scratch: str) -> None:
        """Lets one forked process take the checks that are still to do."""
        if not self._process.alive:
            self._process.close()
            self._process = CheckingProcess(self._scratch, self._preload)
        ready = self._process.wait_until_ready()
        run.facts["tensorflow_version"] = ready["tensorflow_version"]
        run.checking = None
        request = Path(scratch, "request.json")
        request.write_text(run.request(scratch, self._memory_limit_mb), encoding="utf-8")
        self._process.send(str(request))
        while True:
            event = self._process.next_event(self._timeout_s)
            if event is None or event["event"] == "end":
                break
            run.take(event)
        if event is None:
            self._stop(run)
        elif not run.complete:
            run.fail(_death(event["exit_code"]), self._process.last_words())

    def _stop(self, run: _Run) -> None:
        """Kills a check that does not answer; the whole process when that does not answer."""
        words = self._process.last_words()
        if not self._process.alive:
            run.fail("the checking process died", words)
            return
        self._process.send(ABORT)
        while (event := self._process.next_event(_ABORT_TIMEOUT_S)) is not None:
            if event["event"] == "end":
                break
        else:
            self._process.close()
        run.fail(f"no answer within {self._timeout_s:g} s; the process was killed", words)


@dataclasses.dataclass
class _Run:
    """The state of one validation across the processes that it may take."""

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


def _death(exit_code: int) -> str:
    if exit_code >= 0:
        return f"the process ended with exit code {exit_code}"
    return f"the process was killed by {signal.Signals(-exit_code).name}"
