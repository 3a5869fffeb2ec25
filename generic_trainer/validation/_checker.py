"""Checks models in another process and survives what they do to it."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from generic_trainer.validation._contract import ServingContract
from generic_trainer.validation._process import CheckingProcess
from generic_trainer.validation._progress import Progress
from generic_trainer.validation._report import ValidationReport
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
        progress = Progress(str(model_dir), contract or _NO_CONTRACT)
        with tempfile.TemporaryDirectory(dir=self._scratch) as scratch:
            while not progress.complete:
                self._attempt(progress, scratch)
        progress.facts["seconds"] = round(time.perf_counter() - started, 3)
        return progress.report()

    def _attempt(self, progress: Progress, scratch: str) -> None:
        """Lets one forked process take the checks that are still to do."""
        if not self._process.alive:
            self._process.close()
            self._process = CheckingProcess(self._scratch, self._preload)
        ready = self._process.wait_until_ready()
        progress.facts["tensorflow_version"] = ready["tensorflow_version"]
        progress.checking = None
        request = Path(scratch, "request.json")
        request.write_text(progress.request(scratch, self._memory_limit_mb), encoding="utf-8")
        self._process.send(str(request))
        while True:
            event = self._process.next_event(self._timeout_s)
            if event is None or event["event"] == "end":
                break
            progress.take(event)
        if event is None:
            self._stop(progress)
        elif not progress.complete:
            progress.fail(_death(event["exit_code"]), self._process.last_words())

    def _stop(self, progress: Progress) -> None:
        """Kills a check that does not answer; the whole process when that does not answer."""
        words = self._process.last_words()
        if not self._process.alive:
            progress.fail("the checking process died", words)
            return
        self._process.send(ABORT)
        while (event := self._process.next_event(_ABORT_TIMEOUT_S)) is not None:
            if event["event"] == "end":
                break
        else:
            self._process.close()
        progress.fail(f"no answer within {self._timeout_s:g} s; the process was killed", words)


def _death(exit_code: int) -> str:
    if exit_code >= 0:
        return f"the process ended with exit code {exit_code}"
    return f"the process was killed by {signal.Signals(-exit_code).name}"
