"""Client of the fork server: starts it, has it start children, and is told of their ends."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any

import generic_trainer
from generic_trainer._core import internals
from generic_trainer._core.cluster import TF_CONFIG
from generic_trainer._core.files import file_system_modules
from generic_trainer._core.forkserver import messages
from generic_trainer.errors import ConfigurationError, GenericTrainerError

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

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Preload:
    """What a fork server imports, and what of its surroundings the imports see, as plain values."""

    preload: list[str]
    preload_if_there: list[str]
    path: list[str]
    is_isolated: bool
    variables: dict[str, str]

    @classmethod
    def of(
        cls,
        preload: Sequence[str],
        preload_if_there: Sequence[str],
        environment: Mapping[str, str],
        installed_packages: Sequence[str] | None,
    ) -> Preload:
        """Returns those of a server; see `ForkServer`."""
        return cls(
            preload=list(preload),
            preload_if_there=[*preload_if_there, *file_system_modules()],
            path=list(sys.path if installed_packages is None else installed_packages),
            is_isolated=installed_packages is not None,
            variables={
                name: value
                for name, value in environment.items()
                if name.startswith(_READ_BY_IMPORTS) and name != TF_CONFIG
            },
        )

    def cover(self, others: Preload) -> bool:
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
        imports = Preload.of(preload, preload_if_there, environment, installed_packages)
        self._set_up(imports, *_started(imports, environment, output))

    @classmethod
    def of(
        cls, imports: Preload, environment: Mapping[str, str], output: IO[bytes] | None = None
    ) -> ForkServer:
        """Starts a process with such imports; see `ForkServer`."""
        server = cls.__new__(cls)
        server._set_up(imports, *_started(imports, environment, output))
        return server

    @classmethod
    def lent(cls, lender: str, imports: Preload, environment: Mapping[str, str]) -> ForkServer:
        """Returns one that was forked from a server of another process.

        Args:
            lender: the address of a `Lender`.
            imports: what it must have imported.
            environment: what these imports see.

        Raises:
            OSError: the lender is gone, or cannot import that.
            ConfigurationError: it does not answer.
        """
        channel = socket.socket(socket.AF_UNIX)
        server = cls.__new__(cls)
        server._set_up(imports, channel, None)
        try:
            channel.connect(lender)
            messages.check_user(channel)
            request = {"imports": dataclasses.asdict(imports), "environment": dict(environment)}
            messages.send(channel, request)
            server.wait_until_ready()
        except BaseException:
            channel.close()
            raise
        return server

    def _set_up(
        self, imports: Preload, channel: socket.socket, process: subprocess.Popen[bytes] | None
    ) -> None:
        self.imports, self._channel, self._process = imports, channel, process
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
            if self._process is None or self._process.wait() < 0:
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
        if not self._gone:
            try:  # the kernel closes the socket of a process that was killed
                ended = wait([self._channel], 0.0) and not self._channel.recv(1, socket.MSG_PEEK)
            except OSError:
                ended = True
            self._gone = bool(ended)
        return not self._gone

    @property
    def has_children(self) -> bool:
        """Whether a child runs, or has an end that nobody has asked for."""
        return self._children > 0 or bool(self._ended)

    def close(self) -> None:
        """Kills all children, what they have started, and the server."""
        if self._process is None:
            with contextlib.suppress(OSError):  # its end is that of its socket
                self._channel.shutdown(socket.SHUT_WR)
                while self._next_event(_CLOSE_TIMEOUT_S):
                    pass
        self._gone = True
        self._channel.close()
        if self._process is None:
            return
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


def _started(
    imports: Preload, environment: Mapping[str, str], output: IO[bytes] | None
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    flags = ["-I"] if imports.is_isolated else internals.PYTHON_INTERPRETER_FLAGS.get()()
    channel, other = socket.socketpair()
    with other:
        process = subprocess.Popen(
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
    return channel, process


_kept: list[ForkServer] = []
_keepers = 0
_find_lender: Callable[[], str] | None = None


@contextlib.contextmanager
def fork_server(
    preload: Sequence[str],
    *,
    environment: Mapping[str, str],
    preload_if_there: Sequence[str] = (),
    installed_packages: Sequence[str] | None = None,
    output: IO[bytes] | None = None,
) -> Iterator[ForkServer]:
    """Yields a fork server without children: a kept or lent one if one fits; see `ForkServer`."""
    imports = Preload.of(preload, preload_if_there, environment, installed_packages)
    fitting = (each for each in reversed(_kept) if each.is_alive and each.imports.cover(imports))
    server = next(fitting, None)
    if server is None:
        server = _lent(imports, environment) or ForkServer.of(imports, environment, output)
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


def _lent(imports: Preload, environment: Mapping[str, str]) -> ForkServer | None:
    if _find_lender is None:
        return None
    try:
        return ForkServer.lent(_find_lender(), imports, environment)
    except (OSError, GenericTrainerError) as error:
        _logger.info("Nobody lends what has imported TensorFlow, so it is imported here: %s", error)
        return None


@contextlib.contextmanager
def kept_fork_servers(find_lender: Callable[[], str] | None = None) -> Iterator[None]:
    """Lets the runs inside share what the first of them has imported.

    Args:
        find_lender: returns the address of a `Lender`, to be asked before anything is imported,
            or raises OSError.
    """
    global _keepers, _find_lender
    _keepers += 1
    before, _find_lender = _find_lender, find_lender or _find_lender
    try:
        yield
    finally:
        _keepers -= 1
        _find_lender = before
        while _kept and not _keepers:
            _kept.pop().close()
