"""The launcher's end of the nursery."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import generic_trainer
from generic_trainer.errors import ConfigurationError

__all__ = ["Ended", "Nursery", "kept_nursery", "nursery"]

# Loads this package from its own folder, with the caller's path for all others: the user's code
# may be a package that lies beside the script.
_BOOT = """
import importlib.util, json, sys
folder = sys.argv[1]
sys.path[:] = json.loads(sys.argv[2])
spec = importlib.util.spec_from_file_location(
    "generic_trainer", folder + "/__init__.py", submodule_search_locations=[folder])
package = sys.modules["generic_trainer"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from generic_trainer.launchers.local import _nursery_process
_nursery_process.main(int(sys.argv[3]), json.loads(sys.argv[4]))
"""
_START_TIMEOUT_S = 300.0
# Variables that something reads while it is imported; the others are each worker's own.
_READ_BY_IMPORTS = ("GOOGLE", "GRPC", "KERAS", "LD_", "OMP", "PYTHON", "TF_", "XLA")


@dataclasses.dataclass(frozen=True)
class Ended:
    """A worker's end.

    Attributes:
        worker: its name.
        code: its exit code, -N after signal N.
    """

    worker: str
    code: int


class Nursery:
    """Starts workers in no time, and kills them when it is closed."""

    def __init__(self, environment: Mapping[str, str], preload: Sequence[str]) -> None:
        """Starts the process and returns at once; the first worker waits for its imports."""
        self._imported_with = _what_imports_see(environment)
        self.preload = tuple(preload)
        self._channel, other = socket.socketpair()
        with other:
            self._process = self._spawn(other, environment)
        self._received = b""
        self._ready = self._gone = False
        self._ended: list[Ended] = []

    def start(self, worker: str, order: Mapping[str, Any], stdout: int, stderr: int) -> int:
        """Starts a worker and returns the number of its process and of its process group.

        Args:
            worker: its name, which no other has that runs.
            order: what `_worker_process.main` is called with.
            stdout: descriptor that its standard output goes to.
            stderr: the same for standard error.

        Raises:
            ConfigurationError: TensorFlow or TFX cannot be imported there.
            ConnectionError: the nursery is gone, and all workers with it.
        """
        if not self._ready:
            self._wait_until_ready()
        message = json.dumps({**order, "worker": worker}).encode()
        socket.send_fds(self._channel, [message], [stdout, stderr])
        return int(self._expect("started")["pid"])

    def next_end(self, timeout_s: float) -> Ended | None:
        """Returns the next end of a worker; None when there is none in time.

        Raises:
            ConnectionError: the nursery is gone, and all workers with it.
        """
        if not self._ended:
            event = self._next_event(timeout_s)
            if event is not None:
                self._ended.append(Ended(event["worker"], event["code"]))
        return self._ended.pop(0) if self._ended else None

    def fits(self, environment: Mapping[str, str], preload: Sequence[str]) -> bool:
        """Whether it is as good as a new one: it runs, and has imported the same."""
        return (
            self.alive
            and self.preload == tuple(preload)
            and self._imported_with == _what_imports_see(environment)
        )

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return not self._gone and self._process.poll() is None

    def close(self) -> None:
        """Kills all workers, what they have started, and the nursery."""
        self._channel.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:  # still in its imports
            self._process.kill()
            self._process.wait()

    def _spawn(
        self, channel: socket.socket, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        folder = str(Path(generic_trainer.__file__).parent)
        number = channel.fileno()
        return subprocess.Popen(
            [
                *(sys.executable, *_same_flags(), "-c", _BOOT, folder, json.dumps(sys.path)),
                *(str(number), json.dumps(self.preload)),
            ],
            stdin=subprocess.DEVNULL,
            env=dict(environment),
            pass_fds=[number],
            start_new_session=True,
        )

    def _wait_until_ready(self) -> None:
        try:
            self._expect("ready")
        except ConnectionError as error:
            code = self._process.wait()
            if code < 0:
                raise
            raise ConfigurationError(
                "launcher='local': the process that starts the workers could not import "
                f"{', '.join(self.preload)} in {sys.executable}; its output says why."
            ) from error
        self._ready = True

    def _expect(self, name: str) -> dict[str, Any]:
        """Returns the next event of a name; ends of workers that come before it are kept."""
        while True:
            event = self._next_event(_START_TIMEOUT_S)
            if event is None:
                raise ConfigurationError(
                    "launcher='local': the process that starts the workers did not answer within "
                    f"{_START_TIMEOUT_S:g} s."
                )
            if event["event"] == name:
                return event
            self._ended.append(Ended(event["worker"], event["code"]))

    def _next_event(self, timeout_s: float) -> dict[str, Any] | None:
        while b"\n" not in self._received:
            if not wait([self._channel], timeout_s):
                return None
            received = self._channel.recv(1 << 16)
            if not received:
                self._gone = True  # its process may take a moment longer to end
                raise ConnectionError("the nursery is gone")
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        return event


def _what_imports_see(environment: Mapping[str, str]) -> list[Any]:
    variables = {k: v for k, v in environment.items() if k.startswith(_READ_BY_IMPORTS)}
    return [variables, list(sys.path)]


def _same_flags() -> list[str]:
    """The interpreter's options, such as -W and -X, which multiprocessing hands on too."""
    return list(subprocess._args_from_interpreter_flags())  # type: ignore[attr-defined]


_kept: list[Nursery] = []
_keepers = 0


@contextlib.contextmanager
def nursery(environment: Mapping[str, str], preload: Sequence[str]) -> Iterator[Nursery]:
    """Yields a nursery without workers: a kept one if one fits."""
    for kept in _kept:
        if kept.fits(environment, preload):
            _kept.remove(kept)
            used = kept
            break
    else:
        used = Nursery(environment, preload)
    try:
        yield used
    finally:
        if _keepers and used.alive:
            _kept.append(used)
        else:
            used.close()


@contextlib.contextmanager
def kept_nursery() -> Iterator[None]:
    """Lets the runs inside share what the first of them has imported."""
    global _keepers
    _keepers += 1
    try:
        yield
    finally:
        _keepers -= 1
        while _kept and not _keepers:
            _kept.pop().close()
