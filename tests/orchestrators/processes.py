"""Pipeline runs in processes of their own, held at a known point of the user's code.

The processes are forked from one that has imported everything, so each starts at once.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.processes import wait_until

__all__ = ["GATE", "Gate", "Run", "start"]

_PORT_VARIABLE = "TEST_GATE_PORT"
_EXIT_TIMEOUT_S = 600.0

# For module files: where the test holds it, if it does.
GATE = f"""
import os
import socket

def wait_at_gate():
    port = os.environ.get({_PORT_VARIABLE!r})
    if port:
        with socket.create_connection(("127.0.0.1", int(port))) as gate:
            gate.recv(1)
"""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.orchestrators.small_pipeline"])


@dataclasses.dataclass(frozen=True)
class Run:
    """A process and the file with all that it has written."""

    process: BaseProcess
    output_file: Path

    def kill(self, how: signal.Signals = signal.SIGKILL) -> int | None:
        """Sends a signal and returns the exit code."""
        assert self.process.pid is not None
        os.kill(self.process.pid, how)
        return self.exit_code()

    def exit_code(self) -> int | None:
        """Waits for the end and returns the exit code, which is -N after signal N."""
        self.process.join(_EXIT_TIMEOUT_S)
        assert not self.process.is_alive(), f"still runs:\n{self.output()}"
        return self.process.exitcode

    def output(self) -> str:
        """Returns what the process has written so far."""
        return self.output_file.read_text(encoding="utf-8")

    def wait_for_output(self, text: str, timeout_s: float = 30.0) -> None:
        """Returns when `text` is in the output, which may be shown after the process is gone."""
        found = wait_until(lambda: text in self.output(), timeout_s)
        assert found, f"{text!r} is not in:\n{self.output()}"


class Gate:
    """Holds runs where their user code calls `wait_at_gate`."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._held: list[socket.socket] = []

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()
        self._server.close()

    def wait_for(self, run: Run) -> None:
        """Returns when one more run waits, or fails when `run` ends before it came here."""
        ready = connection.wait([self._server, run.process.sentinel])
        assert self._server in ready, f"ended before the gate:\n{run.output()}"
        self._held.append(self._server.accept()[0])

    def open(self) -> None:
        """Lets all that wait go on."""
        while self._held:
            self._held.pop().close()


def start(
    target: Callable[..., None],
    *arguments: Any,
    output_file: Path,
    gate: Gate | None = None,
    temp_dir: Path | None = None,
) -> Run:
    """Calls `target(*arguments)` in a process of its own.

    Args:
        target: an importable function.
        arguments: what can be pickled.
        output_file: takes standard output and error.
        gate: where the user's code waits.
        temp_dir: the directory for its temporary files; None for that of this process.
    """
    port = None if gate is None else gate.port
    process = _context.Process(
        target=_main, args=(target, arguments, str(output_file), port, temp_dir)
    )
    process.start()
    return Run(process, output_file)


def _main(
    target: Callable[..., None],
    arguments: tuple[Any, ...],
    output_file: str,
    port: int | None,
    temp_dir: Path | None,
) -> None:
    # A shell that starts the tests in the background has them ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    descriptor = os.open(output_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(descriptor, stream.fileno())
    if port is not None:
        os.environ[_PORT_VARIABLE] = str(port)
    if temp_dir is not None:
        os.environ["TMPDIR"] = tempfile.tempdir = str(temp_dir)
    target(*arguments)
