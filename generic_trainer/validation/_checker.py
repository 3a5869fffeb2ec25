"""Checks of models in other processes, which a model may crash.

Every model gets a separate process, forked from one that has imported TensorFlow. It runs one
check after the other and reports each. If it dies or does not answer, the check that was running
fails, and another process runs the remaining ones. A process that is killed from outside shows
nothing of the model: another one repeats its check.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import logging
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from generic_trainer._core.files import absolute, is_remote
from generic_trainer._core.forkserver import ForkServer
from generic_trainer._core.machine import oom_kills
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer.errors import (
    ConfigurationError,
    GenericTrainerError,
    WorkerLostError,
    WorkerMemoryError,
)
from generic_trainer.validation._check import Result, Status, printable
from generic_trainer.validation._contract import ServingContract
from generic_trainer.validation._report import ValidationReport

_RUNNER = "generic_trainer.validation._runner"
_KILL_TIMEOUT_S = 30.0
_ADVISORY_TIMEOUT_S = 6.0  # beyond `probe_s`, after which no call begins
_TELL_EVERY_S = 5.0
_LAST_WORDS_BYTES = 2000
_REPEATS = 1  # of checks on one model whose process was killed from outside
# Needs of programs and libraries, and settings that change the results of TensorFlow and Keras.
# TF_ alone would not do: Terraform keeps passwords and tokens in variables that begin so.
_KEPT_VARIABLES = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|LC_\w+|TZ|LD_\w+|NO_COLOR|"
    r"(KERAS|KMP|MALLOC|MKL|OMP|ONEDNN|DNNL|XLA)_\w+|PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION|"
    r"TF_(CPP|CPU|DETERMINISTIC|DISABLE|ENABLE|MKL|NUM|ONEDNN|USE|XLA)_\w+"
)

_logger = logging.getLogger(__name__)


def validate_saved_model(
    model_dir: str,
    contract: ServingContract | None = None,
    *,
    timeout_s: float = 600.0,
    memory_limit_mb: float | None = None,
) -> ValidationReport:
    """Checks whether an exported model works for the consumers downstream.

    Every check runs in a process without the user's code, which sees the model at another path.
    A failure there - an exception, a segmentation fault, an endless loop, a lack of memory - is a
    failed check in the report and never an error here. A check whose process is killed from outside
    is repeated once.

    Args:
        model_dir: directory with `saved_model.pb` or with a TFLite model, or a local TFLite file.
        contract: the requirements. None requires only the needs of any consumer: readable files, a
            signature, ops that exist elsewhere, the same result on the same input, and so on.
        timeout_s: seconds that one check may take.
        memory_limit_mb: MiB that the checks may allocate; None for the free memory, at most 32 GiB
            more than eight times the model's size.

    Raises:
        ConfigurationError: TensorFlow is missing.
        WorkerLostError: the processes of the checks were killed from outside again and again.
        WorkerMemoryError: memory ran out before the first check.
    """
    with Checker(timeout_s=timeout_s, memory_limit_mb=memory_limit_mb) as checker:
        return checker.validate(model_dir, contract)


class Checker(contextlib.AbstractContextManager["Checker"]):
    """A checking process that can take any number of models, one after another.

    It starts at once, so that it is ready when the model is::

        with Checker() as checker:
            train()
            report = checker.validate(model_dir, contract)

    Args:
        timeout_s: seconds that one check may take.
        memory_limit_mb: MiB that the checks on one model may allocate; see `validate_saved_model`.
        preload: modules that the process imports as well while it starts; the rehearsal of an eval
            config needs `tensorflow_model_analysis`, which takes seconds to import.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 600.0,
        memory_limit_mb: float | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        self._timeout_s = timeout_s
        self._preload = tuple(preload)
        self._memory_limit_mb = memory_limit_mb
        self._files = contextlib.ExitStack()
        self._scratch = Path(self._files.enter_context(ScratchFolder("checks-")))
        log = open(self._scratch / "checks.log", "a+b", buffering=0)  # noqa: SIM115
        self._log = self._files.enter_context(log)
        self._server = self._start_server()

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process and its children."""
        self._server.close()
        self._files.close()

    def validate(self, model_dir: str, contract: ServingContract | None = None) -> ValidationReport:
        """Checks one model; see `validate_saved_model`."""
        started = time.perf_counter()
        partial = PartialReport(str(model_dir), contract or ServingContract(signatures=()))
        with ScratchFolder("model-", str(self._scratch)) as scratch:
            request = partial.request(scratch, self._memory_limit_mb)
            request["model_dir"] = _as_directory(request["model_dir"], Path(scratch, "file"))
            repeats = _REPEATS
            try:
                while not partial.complete:
                    end = self._attempt(partial, request)
                    if end is not None and end.is_from_outside and repeats:
                        _logger.warning("Repeating a check on the model: %s", end.reason)
                        repeats -= 1
                    elif end is not None:
                        partial.fail(end)
            except BaseException:  # such as Ctrl-C: the processes must not go on
                self._server.close()
                raise
        partial.facts["seconds"] = round(time.perf_counter() - started, 3)
        return partial.report()

    def _attempt(self, partial: PartialReport, request: dict[str, Any]) -> _EarlyEnd | None:
        """Runs the remaining checks in one process; returns its end if some remain."""
        partial.checking = None
        partial.is_advisory = False
        log_start = self._log.seek(0, os.SEEK_END)
        kills = oom_kills()
        events, sent = Pipe(duplex=False)
        with events:
            with sent:
                pid = self._start_child({**request, "done": partial.done}, sent.fileno())
            answered = self._listen(partial, events)
        if partial.complete or not answered:
            self._server.kill(pid)
        end = self._end(answered, self._limit_s(partial), kills)
        if partial.complete:
            return None
        return end._replace(last_words=self._last_words(log_start))

    def _start_child(self, request: dict[str, Any], sent: int) -> int:
        """Returns the process id; a new server starts the process if the old one was killed."""

        def start() -> int:
            return self._server.start(
                "checks",
                f"{_RUNNER}:run",
                request,
                stdout=self._log.fileno(),
                stderr=self._log.fileno(),
                descriptors=[sent],
                environment=_environment(self._scratch),
            )

        try:
            with contextlib.suppress(ConnectionError):
                if self._server.is_alive:
                    return start()
            self._server.close()
            self._server = self._start_server()
            return start()
        except ConnectionError as error:
            raise WorkerLostError(
                "the process that checks models was killed from outside while it started. Its "
                f"last words:\n{self._last_words(0)}"
            ) from error
        except ConfigurationError as error:
            raise ConfigurationError(
                "the process that checks models did not start; it needs a TensorFlow that "
                f"{sys.executable} can import. Its last words:\n{self._last_words(0)}"
            ) from error

    def _listen(self, partial: PartialReport, events: Connection) -> bool:
        """Takes the events of a process; returns False if it is silent for too long.

        A check that takes long is named, so that a user sees what goes on.
        """
        left_s = self._limit_s(partial)
        with contextlib.suppress(EOFError, OSError):  # the process has ended
            while not partial.complete:
                if events.poll(min(left_s, _TELL_EVERY_S)):
                    partial.take(json.loads(events.recv_bytes()))
                    left_s = self._limit_s(partial)
                    continue
                left_s -= _TELL_EVERY_S
                if left_s <= 0:
                    return False
                subject = partial.checking or "the model is being opened"
                _logger.info("Still checking: %s", subject)
        return True

    def _limit_s(self, partial: PartialReport) -> float:
        """Returns the seconds that the check that runs now may take."""
        if not partial.is_advisory:
            return self._timeout_s
        # A base model takes as long to load and call as the model itself did.
        taken_s = sum(result.seconds for result in partial.results)
        return min(self._timeout_s, partial.contract.probe_s + _ADVISORY_TIMEOUT_S + taken_s)

    def _end(self, answered: bool, limit_s: float, kills: int) -> _EarlyEnd:
        """Waits until the process has ended; returns how it ended.

        Args:
            answered: whether it did so on its own.
            limit_s: seconds that its last check was allowed.
            kills: of the kernel for lack of memory, before the process started.
        """
        try:
            ended = self._server.next_end(_KILL_TIMEOUT_S)
        except ConnectionError:  # nothing that a model does ends the server
            return _EarlyEnd("the checking process died", WorkerLostError)
        if ended is None:
            self._server.close()
        if not answered or ended is None:
            return _EarlyEnd(f"no answer within {limit_s:g} s; the process was killed")
        _, code = ended
        if code >= 0:
            return _EarlyEnd(f"the process ended with exit code {code}")
        reason = f"the process was killed by {signal.Signals(-code).name}"
        if code != -signal.SIGKILL:
            return _EarlyEnd(reason)
        if oom_kills() > kills:
            return _EarlyEnd(f"{reason}, because memory ran out", WorkerMemoryError)
        return _EarlyEnd(f"{reason} from outside", WorkerLostError)

    def _start_server(self) -> ForkServer:
        return ForkServer(
            ("tensorflow", _RUNNER),
            preload_if_there=self._preload,
            environment=_environment(self._scratch),
            installed_packages=_installed_packages(),
            output=self._log,
        )

    def _last_words(self, start: int) -> str:
        """Returns the end of the log, of the part that begins at `start`."""
        end = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(start, end - _LAST_WORDS_BYTES))
        return printable(self._log.read().decode(errors="replace").strip(), keep="\n\t")


def _as_directory(model: str, folder: Path) -> str:
    """Returns the directory of a model; if it is a single file, a new one that holds the file."""
    if not os.path.isfile(model):
        return model
    folder.mkdir()
    shutil.copy(model, folder)
    return str(folder)


def _installed_packages() -> list[str]:
    """Returns the folders of installed packages: those on our path, and TensorFlow's."""
    folders = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("tensorflow")
        if spec is not None and spec.origin is not None:
            folders.append(str(Path(spec.origin).parent.parent))
    return list(dict.fromkeys(folders))


def _environment(scratch: Path) -> dict[str, str]:
    """Returns the variables that a process with TensorFlow needs; the others may hold secrets."""
    return {
        **{key: value for key, value in os.environ.items() if _KEPT_VARIABLES.fullmatch(key)},
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "TMPDIR": str(scratch),  # so that leftovers of killed processes are deleted
    }


class _EarlyEnd(NamedTuple):
    """The end of a process that has not run all checks.

    Attributes:
        reason: how it ended.
        error: class of the error to raise if it shows nothing of the model.
        last_words: the end of its output.
    """

    reason: str
    error: type[GenericTrainerError] = ConfigurationError
    last_words: str = ""

    @property
    def is_from_outside(self) -> bool:
        """Whether the cause may be another process; the kernel frees memory of any."""
        return issubclass(self.error, (WorkerLostError, WorkerMemoryError))


@dataclasses.dataclass
class PartialReport:
    """The checks that are done, and the one that runs.

    Attributes:
        checking: the running check.
        is_advisory: whether its worst outcome is a warning.
        complete: whether all checks are done.
    """

    model_dir: str
    contract: ServingContract
    results: list[Result] = dataclasses.field(default_factory=list)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    checking: str | None = None
    is_advisory: bool = False
    complete: bool = False

    @property
    def done(self) -> dict[str, Status]:
        """Check → its status."""
        return {result.name: result.status for result in self.results}

    def request(self, scratch: str, memory_limit_mb: float | None) -> dict[str, Any]:
        """Returns the request to `_runner`, but for `done`."""
        paths: dict[str, Any] = {n: absolute(path) for n, path in self.contract.paths.items()}
        is_fetched = any(map(is_remote, (self.model_dir, *paths.values())))
        return {
            "model_dir": absolute(self.model_dir),
            "contract": dataclasses.replace(self.contract, **paths).to_json(),
            "scratch": scratch,
            "memory_limit_mb": memory_limit_mb,
            "fetch_environment": dict(os.environ) if is_fetched else {},
            "facts": self.facts,  # those of processes that have died by then
        }

    def take(self, event: dict[str, Any]) -> None:
        """Notes an event of `_runner`."""
        self.facts.update(event.get("facts", {}))
        if event["event"] == "start":
            self.checking = event["check"]
            self.is_advisory = event["advisory"]
        elif event["event"] == "result":
            self._report(Result(**event["result"]))
            self.checking = None
        self.complete = event["event"] == "complete"

    def fail(self, end: _EarlyEnd) -> None:
        """Fails the check that was running, because its process died.

        Raises:
            GenericTrainerError: it died outside of a check, or was killed from outside.
        """
        name = self.checking
        if name is None or end.error is WorkerLostError:
            raise end.error(
                f"the checks on {self.model_dir} could not run: {end.reason}\n{end.last_words}"
            )
        status: Status = "warn" if self.is_advisory else "fail"
        message = f"{end.reason}. Last words: {end.last_words[-600:] or 'none'}"
        remedy = "a model that takes down the process that loads it does so to a consumer too"
        self._report(Result(name, status, message, remedy))

    def _report(self, result: Result) -> None:
        """Adds a result; that of a check that runs again, as `scores` may, replaces the first."""
        place = [*self.done, result.name].index(result.name)
        self.results[place : place + 1] = [result]

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
