"""Client of the fork server: starts it, requests children, and receives their exit codes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import IO, Any

import generic_trainer
from generic_trainer._core import internals
from generic_trainer.errors import ConfigurationError

# Loads this package from its directory. The parent directory must not be on the path, because it
# may contain modules of the user.
_BOOT = """
import importlib.util, json, sys
folder, path, replaces, *arguments = json.loads(sys.argv[1])
sys.path[:] = path if replaces else [*sys.path, *path]
spec = importlib.util.spec_from_file_location(
    "generic_trainer", folder + "/__init__.py", submodule_search_locations=[folder])
package = sys.modules["generic_trainer"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from generic_trainer._core.forkserver import server
server.main(*arguments)
"""
_FOLDER = str(Path(generic_trainer.__file__).parent)
# Modules with file systems, which children need if this process has imported them.
_FILE_SYSTEMS = ("tensorflow_io",)
_START_TIMEOUT_S = 300.0
_CLOSE_TIMEOUT_S = 10.0


class ForkServer:
    """A process that starts children within milliseconds and kills them when it is closed."""

    def __init__(
        self,
        preload: Sequence[str],
        *,
        preload_if_there: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        installed_packages: Sequence[str] | None = None,
        output: IO[bytes] | None = None,
    ) -> None:
        """Starts the process and returns at once; the first child waits for its imports.

        Args:
            preload: modules to import.
            preload_if_there: modules to import if they are installed.
            environment: the server's environment variables; None for those of this process.
            installed_packages: additional import directories for isolated mode (`-I`), which
                excludes user code and `PYTHONPATH`. None for the import path of this process.
            output: the file for the server's own output, such as errors of imports; children have
                separate streams. None for the standard streams of this process.
        """
        self._preload = list(preload)
        is_isolated = installed_packages is not None
        path = list(sys.path if installed_packages is None else installed_packages)
        flags = ["-I"] if is_isolated else internals.PYTHON_INTERPRETER_FLAGS.get()()
        if_there = [*preload_if_there, *(name for name in _FILE_SYSTEMS if name in sys.modules)]
        self._channel, other = Pipe()
        with other:
            boot = [_FOLDER, path, not is_isolated, other.fileno(), self._preload, if_there]
            self._process = subprocess.Popen(
                [sys.executable, *flags, "-c", _BOOT, json.dumps(boot)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=None if environment is None else dict(environment),
                pass_fds=[other.fileno()],
                start_new_session=True,
            )
        self._ready = self._gone = False
        self._ended: list[dict[str, Any]] = []

    def start(
        self,
        name: str,
        target: str,
        arguments: Mapping[str, Any],
        *,
        stdout: int,
        stderr: int,
        descriptors: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Starts a child and returns its process id, which is also the id of its process group.

        The child gets the working directory of this process.

        Args:
            name: a name that is unique among running children.
            target: `"module:function"`, called with `arguments` and the child's copies of the
                `descriptors`; it returns the exit code.
            arguments: values that JSON can represent.
            stdout: the descriptor for its standard output.
            stderr: the descriptor for its standard error.
            descriptors: further descriptors.
            environment: all of its environment variables; None for those of this process.

        Raises:
            ConfigurationError: the server could not import its modules.
            ConnectionError: the server has exited, and all children with it.
        """
        self.wait_until_ready()
        handed_on = [stdout, stderr, *descriptors]
        request = {
            "name": name,
            "target": target,
            "cwd": os.getcwd(),
            "arguments": dict(arguments),
            "environment": dict(os.environ if environment is None else environment),
            "descriptors": len(handed_on),
        }
        with self._noticing_the_end():
            self._channel.send_bytes(json.dumps(request).encode())
            for descriptor in handed_on:
                send_handle(self._channel, descriptor, self._process.pid)
        return int(self._expect("started")["pid"])

    def next_end(self, timeout_s: float) -> tuple[str, int] | None:
        """Returns the name and exit code (-N after signal N) of the next child that has ended.

        Args:
            timeout_s: the number of seconds to wait; the result is None after that.

        Raises:
            ConnectionError: the server has exited, and all children with it.
        """
        event = self._ended.pop(0) if self._ended else self._next_event(timeout_s)
        return None if event is None else (event["name"], event["code"])

    def kill(self, pid: int) -> None:
        """Kills a child and its process group; `next_end` reports the end as usual."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    def wait_until_ready(self) -> None:
        """Waits until the server has imported its modules.

        Raises:
            ConfigurationError: an import failed, or crashed as without an instruction that it uses.
            ConnectionError: the server was killed from outside.
        """
        if self._ready:
            return
        try:
            self._expect("ready")
        except ConnectionError as error:
            if self._process.wait() in (-signal.SIGKILL, -signal.SIGTERM):
                raise
            modules = ", ".join(self._preload)
            raise ConfigurationError(
                f"A child process could not import {modules} in {sys.executable}; "
                "its output shows the reason."
            ) from error
        self._ready = True

    @property
    def is_alive(self) -> bool:
        """Whether the process is still running and its socket is open."""
        return not self._gone and self._process.poll() is None

    def close(self) -> None:
        """Kills all children with their descendants, and ends the server."""
        self._gone = True
        self._channel.close()
        try:
            self._process.wait(_CLOSE_TIMEOUT_S if self._ready else 0.0)
        except subprocess.TimeoutExpired:  # the server is still importing, or is suspended
            self._process.kill()
            self._process.wait()

    def _expect(self, name: str) -> dict[str, Any]:
        """Returns the next event with a name, and stores ends of children that precede it."""
        while True:
            event = self._next_event(_START_TIMEOUT_S)
            if event is None:
                self._gone = True
                raise ConfigurationError(
                    "The process that starts child processes did not answer within "
                    f"{_START_TIMEOUT_S:g} s."
                )
            if event["event"] == name:
                return event
            self._ended.append(event)

    def _next_event(self, timeout_s: float) -> dict[str, Any] | None:
        with self._noticing_the_end():
            if not self._channel.poll(timeout_s):
                return None
            event: dict[str, Any] = json.loads(self._channel.recv_bytes())
            return event

    @contextlib.contextmanager
    def _noticing_the_end(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            self._gone = True  # although the process itself may run a moment longer
            raise ConnectionError("the fork server is gone") from error
