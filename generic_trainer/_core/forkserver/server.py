"""The server process: it imports once, forks children on request, and reports their exits.

It sends three events: `ready` after its imports, `started` with the process id of a child, and
`ended` with the exit code of a child (-N after signal N).

It kills descendants of children: members of a child's process group when the child exits, and
others (after `setsid`, such as daemons) when the last child exits. It can kill the latter because
it adopts orphans.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import logging
import os
import signal
import time
import traceback
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from typing import Any

import psutil

from generic_trainer._core import internals, machine
from generic_trainer._core.output import flush
from generic_trainer._core.scratch import look_up_temp_dir

# prctl(2) on Linux.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# If memory runs out, the kernel must kill a child, and not this process, which reports the loss.
_OOM_SCORE = 500
# How long a killed process may take to disappear: the kernel may have to wait for a file system.
_KILL_TIMEOUT_S = 5.0
_POLL_S = 0.01


def main(descriptor: int, preload: Sequence[str], preload_if_there: Sequence[str]) -> None:
    """Serves requests until the socket closes.

    Args:
        descriptor: the file descriptor of the socket.
        preload: modules to import.
        preload_if_there: modules to import if they are installed.
    """
    with warnings.catch_warnings():
        # The client's own imports have shown these warnings already.
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        for name in preload:
            importlib.import_module(name)
        for name in preload_if_there:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        logging.disable(logging.NOTSET)
    gc.freeze()  # or each collection of a child examines, and copies, all that was imported
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    server = _Server(Connection(descriptor))
    server.tell(event="ready")
    server.serve()
    os._exit(0)  # skips the shutdown of Python and TensorFlow, which is slow and unnecessary


def die_with_parent(parent: int | None = None) -> None:
    """Makes the kernel kill this process when its parent exits.

    The kernel cancels that if the process gains capabilities, as in a new user namespace; call this
    again afterwards.

    Args:
        parent: the parent's process id, if it may have exited already; None for the current one.
    """
    parent = os.getppid() if parent is None else parent
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent exited before the request
        os._exit(1)


class _Server:
    def __init__(self, channel: Connection) -> None:
        self._channel = channel
        self._children: dict[int, str] = {}
        # SIGCHLD writes into this pipe, so that the exit of a child ends the wait() in serve().
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the requesting process handles Ctrl-C
        signal.set_wakeup_fd(self._wake)

    def tell(self, **event: Any) -> None:
        with contextlib.suppress(OSError):
            self._channel.send_bytes(json.dumps(event).encode())

    def serve(self) -> None:
        try:
            while True:
                readable = wait([self._channel, self._woken])
                if self._woken in readable:
                    os.read(self._woken, 512)
                    self._reap()
                if self._channel in readable:
                    try:
                        request = json.loads(self._channel.recv_bytes())
                        received = range(request["descriptors"])
                        descriptors = [recv_handle(self._channel) for _ in received]
                    except (EOFError, OSError):  # the client has closed the socket, or was killed
                        return
                    self._fork(request, descriptors)
        finally:
            for pid in self._children:
                _kill_group(pid)
            _kill_all_children()

    def _reap(self) -> None:
        """Reports the children that have exited, after killing their descendants."""
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                name = self._children.pop(ended.si_pid, None)
                if name is not None:  # otherwise it is a descendant of a child
                    # Before waitpid, after which the id may belong to another process.
                    _kill_group(ended.si_pid)
                _, status = os.waitpid(ended.si_pid, 0)
                if name is not None:
                    # The child that started an orphan is unknown, so orphans live until the last
                    # child has exited.
                    if not self._children:
                        _kill_all_children()
                    self.tell(event="ended", name=name, code=os.waitstatus_to_exitcode(status))

    def _fork(self, request: dict[str, Any], descriptors: Sequence[int]) -> None:
        own_pid = os.getpid()
        with warnings.catch_warnings():
            # Python warns of threads. Those that the imports have started are idle, without locks.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            self._become_child(request, descriptors, own_pid)
        # Both processes create the group, because the client may kill it immediately.
        _lead_group(pid)
        for descriptor in descriptors:
            os.close(descriptor)
        self._children[pid] = request["name"]
        self.tell(event="started", name=request["name"], pid=pid)

    def _become_child(
        self, request: dict[str, Any], descriptors: Sequence[int], server_pid: int
    ) -> None:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _lead_group(0)
            die_with_parent(server_pid)
            machine.be_first_to_be_killed(_OOM_SCORE)
            for descriptor, target in zip(descriptors[:2], (1, 2), strict=True):
                os.dup2(descriptor, target)
                os.close(descriptor)
            self._channel.close()
            os.close(self._woken)
            os.close(self._wake)
            internals.PYTHON_ATEXIT_CLEAR.get()()
            os.environ.clear()
            os.environ.update(request["environment"])
            look_up_temp_dir()
            with contextlib.suppress(OSError):  # the directory may not exist
                os.chdir(request["cwd"])
            module, _, function = request["target"].partition(":")
            run = getattr(importlib.import_module(module), function)
            code = run(request["arguments"], *descriptors[2:])
        except BaseException:
            traceback.print_exc()
        finally:
            internals.PYTHON_ATEXIT_RUN.get()()  # functions that the child has registered
            flush()
            os._exit(code)


def _prctl(option: int, argument: int) -> None:
    # Only on Linux; elsewhere, the closed socket ends the process.
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(option, argument)


def _lead_group(pid: int) -> None:
    """Creates a process group for a child, unless it has one or has exited."""
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)


def _kill_all_children() -> None:
    """Kills all children of this process, and their descendants, which become its children."""
    end_s = time.monotonic() + _KILL_TIMEOUT_S
    others: set[int] = set()  # processes of another user, such as sudo, cannot be killed
    this = psutil.Process()
    while (pids := {child.pid for child in this.children()} - others) and time.monotonic() < end_s:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except PermissionError:
                others.add(pid)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_POLL_S)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
