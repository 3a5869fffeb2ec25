"""Client of the fork server: starts it, has it start children, and is told of their ends."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any

import generic_trainer
from generic_trainer._core import internals
from generic_trainer._core.cluster import TF_CONFIG
from generic_trainer._core.files import file_system_modules
from generic_trainer._core.forkserver import messages
from generic_trainer.errors import ConfigurationError

# Loads this package from its own folder: that folder's parent may hold the user's modules, and is
# not put on the path for our sake.
_BOOT = """
import importlib.util, json, sys
folder, path, replaces = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
sys.path[:] = path if replaces else [*sys.path, *path]
spec = importlib.util.spec_from_file_location(
    "generic_trainer", folder + "/__init__.py", submodule_search_locations=[folder])
package = sys.modules["generic_trainer"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from generic_trainer._core.forkserver import server
server.main(int(sys.argv[4]), *json.loads(sys.argv[5]))
"""
_START_TIMEOUT_S = 300.0
_CLOSE_TIMEOUT_S = 10.0
_MOST_KEPT = 3  # each holds half a gigabyte
# Variables that something reads while it is imported; the others are each child's own.
_READ_BY_IMPORTS = ("GOOGLE", "GRPC", "KERAS", "LD_", "OMP", "PYTHON", "TF_", "XLA")


@dataclasses.dataclass(frozen=True)
class _Imports:
    """What a fork server imports, and what of its surroundings the imports see."""

    preload: tuple[str, ...]
    preload_if_there: tuple[str, ...]
    path: tuple[str, ...]
    is_isolated: bool
    variables: dict[str, str]

    @classmethod
    def of(
        cls,
        preload: Sequence[str],
        preload_if_there: Sequence[str],
        environment: Mapping[str, str],
        installed_packages: Sequence[str] | None,
    ) -> _Imports:
        """Returns those of a server; see `ForkServer`."""
        return cls(
            preload=tuple(preload),
            preload_if_there=(*preload_if_there, *file_system_modules()),
            path=tuple(sys.path if installed_packages is None else installed_packages),
            is_isolated=installed_packages is not None,
            variables={
                name: value
                for name, value in environment.items()
                if name.startswith(_READ_BY_IMPORTS) and name != TF_CONFIG
            },
        )

    def cover(self, others: _Imports) -> bool:
        """Returns whether a server with these is as good as one with the others."""
        modules = {*self.preload, *self.preload_if_there}
        return (
            modules.issuperset((*others.preload, *others.preload_if_there))
            and (self.path, self.is_isolated) == (others.path, others.is_isolated)
            and self.variables == others.variables
        )


class ForkServer:
    """A process that starts children in no time, and kills them when it is closed."""

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
            preload_if_there: modules to import if they can be.
            environment: what its imports see; None for the variables of this process.
            installed_packages: folders that Python finds modules in besides its own, in isolated
                mode (`-I`): no user code, no `PYTHONPATH`. None for the path of this process.
            output: file that it writes to until it has children, which have their own streams; None
                for the standard streams of this process.
        """
        environment = dict(os.environ if environment is None else environment)
        imports = _Imports.of(preload, preload_if_there, environment, installed_packages)
        self.imports = imports
        flags = ["-I"] if imports.is_isolated else internals.PYTHON_INTERPRETER_FLAGS.get()()
        self._channel, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, *flags, "-c", _BOOT),
                    *(str(Path(generic_trainer.__file__).parent), json.dumps(imports.path)),
                    *(json.dumps(not imports.is_isolated), str(other.fileno())),
                    json.dumps([imports.preload, imports.preload_if_there]),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                pass_fds=[other.fileno()],
                start_new_session=True,
            )
        self._ready = self._gone = False
        self._ended: list[tuple[str, int]] = []
        self._children = 0

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
        """Starts a child and returns the number of its process and of its process group.

        Its working directory is that of this process.

        Args:
            name: of the child, which no other has that runs.
            target: `"module:function"`, called with `arguments` and the child's copies of the
                `descriptors`; what it returns is the exit code.
            arguments: what JSON can hold.
            stdout: descriptor that its standard output goes to.
            stderr: the same for standard error.
            descriptors: at most six others.
            environment: all of its variables; None for those of this process.

        Raises:
            ConfigurationError: the server could not import what it was told to.
            ConnectionError: the server is gone, and all children with it.
        """
        self.wait_until_ready()
        request: dict[str, Any] = {"name": name, "target": target, "cwd": os.getcwd()}
        request["arguments"] = dict(arguments)
        request["environment"] = dict(os.environ if environment is None else environment)
        self._children += 1
        try:
            messages.send(self._channel, request, [stdout, stderr, *descriptors])
        except OSError as error:
            self._gone = True
            raise ConnectionError("the fork server is gone") from error
        return int(self._expect("started")["pid"])

    def next_end(self, timeout_s: float) -> tuple[str, int] | None:
        """Returns name and exit code (-N after signal N) of the next child that has ended.

        Args:
            timeout_s: seconds to wait; None is returned when there is none in time.

        Raises:
            ConnectionError: the server is gone, and all children with it.
        """
        if not self._ended:
            event = self._next_event(timeout_s)
            if event is not None:
                self._note_end(event)
        return self._ended.pop(0) if self._ended else None

    def kill(self, pid: int) -> None:
        """Kills a child and all that it has started; its end is reported as any other."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    def wait_until_ready(self) -> None:
        """Waits for the imports.

        Raises:
            ConfigurationError: one of them failed.
            ConnectionError: the server was killed.
        """
        if self._ready:
            return
        try:
            self._expect("ready")
        except ConnectionError as error:
            if self._process.wait() < 0:
                raise
            modules = ", ".join(self.imports.preload)
            raise ConfigurationError(
                f"A child process could not import {modules} in {sys.executable}; "
                "its output says why."
            ) from error
        self._ready = True

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs and answers."""
        return not self._gone and self._process.poll() is None

    @property
    def has_children(self) -> bool:
        """Whether a child runs, or has an end that nobody has asked for."""
        return self._children > 0 or bool(self._ended)

    def close(self) -> None:
        """Kills all children, what they have started, and the server."""
        self._channel.close()
        try:
            self._process.wait(_CLOSE_TIMEOUT_S if self._ready else 0.0)
        except subprocess.TimeoutExpired:  # still in its imports, or stopped
            self._process.kill()
            self._process.wait()

    def _expect(self, name: str) -> dict[str, Any]:
        """Returns the next event of a name; ends of children that come before it are kept."""
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
            self._note_end(event)

    def _note_end(self, event: Mapping[str, Any]) -> None:
        self._children -= 1
        self._ended.append((event["name"], event["code"]))

    def _next_event(self, timeout_s: float) -> dict[str, Any] | None:
        if not wait([self._channel], timeout_s):
            return None
        try:
            return messages.receive(self._channel)[0]
        except OSError as error:  # ConnectionError is one
            self._gone = True  # its process may take a moment longer to end
            raise ConnectionError("the fork server is gone") from error


_kept: list[ForkServer] = []
_keepers = 0


@contextlib.contextmanager
def fork_server(
    preload: Sequence[str],
    *,
    environment: Mapping[str, str],
    preload_if_there: Sequence[str] = (),
    installed_packages: Sequence[str] | None = None,
    output: IO[bytes] | None = None,
) -> Iterator[ForkServer]:
    """Yields a fork server without children: a kept one if one fits; see `ForkServer`."""
    imports = _Imports.of(preload, preload_if_there, environment, installed_packages)
    fitting = (each for each in reversed(_kept) if each.is_alive and each.imports.cover(imports))
    server = next(fitting, None)
    if server is None:
        server = ForkServer(
            preload,
            preload_if_there=preload_if_there,
            environment=environment,
            installed_packages=installed_packages,
            output=output,
        )
    else:
        _kept.remove(server)
    try:
        yield server
    finally:
        if _keepers and server.is_alive and not server.has_children:
            _keep(server)
        else:
            server.close()


def _keep(server: ForkServer) -> None:
    """Keeps a server in place of those that have imported no more, and of the oldest."""
    needless = [kept for kept in _kept if server.imports.cover(kept.imports)]
    for kept in needless or (_kept[:1] if len(_kept) == _MOST_KEPT else []):
        _kept.remove(kept)
        kept.close()
    _kept.append(server)


@contextlib.contextmanager
def kept_fork_servers() -> Iterator[None]:
    """Lets the runs inside share what the first of them has imported."""
    global _keepers
    _keepers += 1
    try:
        yield
    finally:
        _keepers -= 1
        while _kept and not _keepers:
            _kept.pop().close()
