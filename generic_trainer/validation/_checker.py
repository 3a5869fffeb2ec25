"""Checks of models in other processes, whatever the models do to these.

Every model gets a process of its own, forked from one that has imported TensorFlow. It runs one
check after the other and reports each. When it dies, or does not answer, that is the fault of the
check that ran; another process goes on with those that are left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any

from generic_trainer._core.cluster import TF_CONFIG
from generic_trainer._core.files import absolute
from generic_trainer._core.forkserver import ForkServer, fork_server
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer.errors import ConfigurationError
from generic_trainer.validation._check import Result, printable
from generic_trainer.validation._contract import SOURCES, ServingContract
from generic_trainer.validation._report import ValidationReport

_RUNNER = "generic_trainer.validation._runner"
_KILL_TIMEOUT_S = 30.0
_ADVISORY_TIMEOUT_S = 6.0  # beyond `probe_s`, after which no call begins
_LAST_WORDS_BYTES = 2000
_NO_CONTRACT = ServingContract(signatures=())
_DROPPED_VARIABLES = (TF_CONFIG, "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP")


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
        model_dir: directory with `saved_model.pb`, or with a model in another format that is known,
            or the local file of such a model.
        contract: what is required. None requires what any consumer needs: readable files, a
            signature, ops that exist elsewhere, the same result on the same input, and so on.
        timeout_s: seconds that one check may take.
        memory_limit_mb: MiB that the checks may allocate; None for what is free, and no more than
            32 GiB beyond eight times the model's size.

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
        memory_limit_mb: MiB that the checks on one model may allocate; see `validate_saved_model`.
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
        self._folder = ScratchFolder("checks-")
        self._scratch = Path(self._folder.path)
        self._log = self._scratch / "checks.log"
        self._running = contextlib.ExitStack()
        self._server = self._start_server()

    def __enter__(self) -> Checker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process, and all that it has started."""
        self._running.close()
        self._folder.close()

    def validate(self, model_dir: str, contract: ServingContract | None = None) -> ValidationReport:
        """Checks one model; see `validate_saved_model`."""
        started = time.perf_counter()
        partial = _PartialReport(str(model_dir), contract or _NO_CONTRACT)
        with ScratchFolder("model-", self._folder.path) as scratch:
            request = partial.request(scratch, self._memory_limit_mb)
            request["model_dir"] = _as_directory(request["model_dir"], Path(scratch, "file"))
            try:
                while not partial.complete:
                    self._attempt(partial, request)
            except BaseException:  # such as Ctrl-C: what was started must not go on
                self._server.close()
                raise
        partial.facts["seconds"] = round(time.perf_counter() - started, 3)
        return partial.report()

    def _attempt(self, partial: _PartialReport, request: dict[str, Any]) -> None:
        """Lets one process take the checks that are still to do."""
        partial.checking, partial.is_advisory = None, False
        reader, writer = os.pipe()
        with (
            open(reader, "rb", buffering=0) as events,
            open(writer, "wb", buffering=0) as sent,
            open(self._log, "ab") as log,
        ):
            log_start = log.tell()
            pid = self._start_child(request, log.fileno(), sent.fileno())
            sent.close()
            answered = self._listen(partial, events)
        if partial.complete or not answered:
            self._server.kill(pid)
        reason = self._end(answered, self._limit_s(partial))
        if not partial.complete:
            partial.fail(reason, self._last_words(log_start))

    def _start_child(self, request: dict[str, Any], log: int, events: int) -> int:
        """Returns the number of the process, which another server starts if this one was killed."""

        def start() -> int:
            return self._server.start(
                "checks",
                f"{_RUNNER}:run",
                request,
                stdout=log,
                stderr=log,
                descriptors=[events],
                environment=_environment(self._scratch),
            )

        try:
            with contextlib.suppress(ConnectionError):
                if self._server.is_alive:
                    return start()
            self._server = self._start_server()
            return start()
        except (ConfigurationError, ConnectionError) as error:
            raise ConfigurationError(
                "the process that checks models did not start; it needs a TensorFlow that "
                f"{sys.executable} can import. Its last words:\n{self._last_words(0)}"
            ) from error

    def _listen(self, partial: _PartialReport, events: IO[bytes]) -> bool:
        """Takes the events of a process; returns False when it is silent for too long."""
        unread = b""
        while not partial.complete:
            if not wait([events.fileno()], self._limit_s(partial)):
                return False
            part = events.read(1 << 16)
            if not part:
                return True
            *lines, unread = (unread + part).split(b"\n")
            for line in lines:
                partial.take(json.loads(line))
        return True

    def _limit_s(self, partial: _PartialReport) -> float:
        """Returns the seconds that the check that runs now may take."""
        if not partial.is_advisory:
            return self._timeout_s
        return min(self._timeout_s, partial.contract.probe_s + _ADVISORY_TIMEOUT_S)

    def _end(self, answered: bool, limit_s: float) -> str:
        """Waits until the process has ended; returns what happened to it."""
        try:
            ended = self._server.next_end(_KILL_TIMEOUT_S)
        except ConnectionError:
            return "the checking process died"
        if ended is None:
            self._server.close()
        if ended is None or not answered:
            return f"no answer within {limit_s:g} s; the process was killed"
        _, code = ended
        if code >= 0:
            return f"the process ended with exit code {code}"
        return f"the process was killed by {signal.Signals(-code).name}"

    def _start_server(self) -> ForkServer:
        self._running.close()
        with open(self._log, "ab") as log:
            return self._running.enter_context(
                fork_server(
                    ("tensorflow", _RUNNER),
                    preload_if_there=self._preload,
                    environment=_environment(self._scratch),
                    installed_packages=_installed_packages(),
                    output=log,
                )
            )

    def _last_words(self, start: int) -> str:
        """Returns the end of what was written to standard error, of what came after `start`."""
        with open(self._log, "rb") as log:
            log.seek(max(start, log.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
            return printable(log.read().decode(errors="replace").strip(), keep="\n\t")


@dataclasses.dataclass
class _PartialReport:
    """What is known of one model so far, across the processes that a report may take.

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


def _as_directory(model: str, folder: Path) -> str:
    """Returns the directory of a model; of one that is a single file, one with a link to it."""
    if not os.path.isfile(model):
        return model
    folder.mkdir()
    (folder / Path(model).name).symlink_to(model)
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
    """Returns the caller's environment without its cluster and GPUs, which training may occupy."""
    return {
        **{key: value for key, value in os.environ.items() if key not in _DROPPED_VARIABLES},
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "TMPDIR": str(scratch),  # what a killed process leaves goes with the rest
    }
