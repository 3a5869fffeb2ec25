"""Checks of models in other processes, whatever the models do to these.

Every model gets a process of its own, forked from one that has imported TensorFlow. It runs one
check after the other and reports each. When it dies, or does not answer, that is the fault of the
check that ran; another process goes on with those that are left. Of a model that takes long to
load, where there are processors and memory to spare, a second one works ahead: see `_ahead`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any

from generic_trainer._core.cluster import TF_CONFIG
from generic_trainer._core.forkserver import ForkServer, fork_server
from generic_trainer._core.machine import available_cpus, free_memory_bytes
from generic_trainer._core.scratch import ScratchFolder
from generic_trainer.errors import ConfigurationError
from generic_trainer.validation._check import printable
from generic_trainer.validation._contract import ServingContract
from generic_trainer.validation._partial_report import PartialReport
from generic_trainer.validation._report import ValidationReport

_RUNNER = "generic_trainer.validation._runner"
_AHEAD_RUNNER = "generic_trainer.validation._ahead_runner"
_FIRST_TO_RUN_THE_MODEL = "loads"
# It takes TensorFlow a second to build a graph of a megabyte.
_GRAPH_FILE, _SMALL_GRAPH_BYTES = "saved_model.pb", 1 << 19
# Beside the model, which a process may take many times the size of.
_ROOM_FOR_TWO_BYTES = 4 << 30
_ROOM_TIMES_ITS_SIZE = 32
_CHECKS, _AHEAD = "checks", "ahead"  # the processes
_KILL_TIMEOUT_S = 30.0
_ADVISORY_TIMEOUT_S = 6.0  # beyond `probe_s`, after which no call begins
_LAST_WORDS_BYTES = 2000
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
        partial = PartialReport(str(model_dir), contract or ServingContract(signatures=()))
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

    def _attempt(self, partial: PartialReport, request: dict[str, Any]) -> None:
        """Lets one process take the checks that are still to do."""
        partial.checking, partial.is_advisory = None, False
        with contextlib.ExitStack() as files:
            log = files.enter_context(open(self._log, "ab"))
            events, sent = _pipe(files)
            told, tells = _pipe(files)
            log_start = log.tell()
            children = [self._start_child(request, log, sent, told)]
            sent.close()
            if partial.done:  # who waits at the other end must not do so for ever
                tells.close()

            def work_ahead() -> None:
                with contextlib.suppress(ConnectionError), tells:
                    if self._may_work_ahead(partial):
                        children.append(self._start_ahead(request, tells))

            answered = self._listen(partial, events, work_ahead)
        for pid in children if partial.complete or not answered else children[1:]:
            self._server.kill(pid)
        reason = self._end(len(children), answered, self._limit_s(partial))
        if not partial.complete:
            partial.fail(reason, self._last_words(log_start))

    def _may_work_ahead(self, partial: PartialReport) -> bool:
        """Whether a second process saves time, and takes nothing that is needed or limited."""
        size_bytes = partial.facts.get("size_bytes", math.inf)
        graph = Path(partial.model_dir, _GRAPH_FILE)
        return (
            graph.is_file()
            and graph.stat().st_size > _SMALL_GRAPH_BYTES
            and len(available_cpus()) > 1
            and _ROOM_FOR_TWO_BYTES + _ROOM_TIMES_ITS_SIZE * size_bytes < free_memory_bytes()
            and self._memory_limit_mb is None
            and partial.contract.max_latency_ms is None
            and not partial.is_remote
        )

    def _start_ahead(self, request: dict[str, Any], tells: IO[bytes]) -> int:
        with open(os.devnull, "wb") as nowhere:
            return self._fork(_AHEAD, _AHEAD_RUNNER, request, nowhere, [tells])

    def _start_child(
        self, request: dict[str, Any], log: IO[bytes], sent: IO[bytes], told: IO[bytes]
    ) -> int:
        """Returns the number of the process, which another server starts if this one was killed."""
        start = functools.partial(self._fork, _CHECKS, _RUNNER, request, log, [sent, told])
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

    def _fork(
        self,
        name: str,
        runner: str,
        request: dict[str, Any],
        output: IO[bytes],
        pipes: Sequence[IO[bytes]],
    ) -> int:
        return self._server.start(
            name,
            f"{runner}:run",
            request,
            stdout=output.fileno(),
            stderr=output.fileno(),
            descriptors=[pipe.fileno() for pipe in pipes],
            environment=_environment(self._scratch),
        )

    def _listen(
        self, partial: PartialReport, events: IO[bytes], work_ahead: Callable[[], None]
    ) -> bool:
        """Takes the events of a process; returns False when it is silent for too long.

        Calls `work_ahead` when the static checks are through.
        """
        unread = b""
        while not partial.complete:
            if not wait([events.fileno()], self._limit_s(partial)):
                return False
            part = events.read(1 << 16)
            if not part:
                return True
            *lines, unread = (unread + part).split(b"\n")
            for line in lines:
                event = json.loads(line)
                partial.take(event)
                if event["event"] == "start" and event["check"] == _FIRST_TO_RUN_THE_MODEL:
                    work_ahead()
        return True

    def _limit_s(self, partial: PartialReport) -> float:
        """Returns the seconds that the check that runs now may take."""
        if not partial.is_advisory:
            return self._timeout_s
        return min(self._timeout_s, partial.contract.probe_s + _ADVISORY_TIMEOUT_S)

    def _end(self, children: int, answered: bool, limit_s: float) -> str:
        """Waits until all processes have ended; returns what happened to the one that checks."""
        codes: dict[str, int] = {}
        try:
            while len(codes) < children and (ended := self._server.next_end(_KILL_TIMEOUT_S)):
                codes.update([ended])
        except ConnectionError:
            return "the checking process died"
        if len(codes) < children:
            self._server.close()
        if not answered or _CHECKS not in codes:
            return f"no answer within {limit_s:g} s; the process was killed"
        code = codes[_CHECKS]
        if code >= 0:
            return f"the process ended with exit code {code}"
        return f"the process was killed by {signal.Signals(-code).name}"

    def _start_server(self) -> ForkServer:
        self._running.close()
        with open(self._log, "ab") as log:
            return self._running.enter_context(
                fork_server(
                    ("tensorflow", _RUNNER, _AHEAD_RUNNER),
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


def _pipe(files: contextlib.ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """Returns both ends of a pipe, which are closed with the stack at the latest."""
    reader, writer = os.pipe()
    return (
        files.enter_context(open(reader, "rb", buffering=0)),
        files.enter_context(open(writer, "wb", buffering=0)),
    )


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
