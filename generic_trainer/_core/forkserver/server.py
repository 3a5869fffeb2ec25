"""The process that children are forked from: it imports once, forks, and reports who has ended.

It tells the client `ready` after its imports, `started` with the process id of each child, and
`ended` with its exit code, -N after signal N.

What a child has started ends with it: at once what is in its process group, and with the last child
what has left that (`setsid`, daemons); orphans are adopted by this process, which kills them.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

from generic_trainer._core import internals, machine
from generic_trainer._core.forkserver import messages
from generic_trainer._core.scratch import look_up_temp_dir

# prctl(2) on Linux.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# The kernel shall rather kill a child than the process that can report it.
_OOM_SCORE = 500
# How long a killed process may take to be gone: the kernel may have to wait for a file system.
_KILL_TIMEOUT_S = 5.0
_POLL_S = 0.01


def main(descriptor: int, preload: Sequence[str], preload_if_there: Sequence[str]) -> None:
    """Serves requests until the socket closes.

    Args:
        descriptor: the socket.
        preload: modules to import.
        preload_if_there: modules whose import may fail.
    """
    with socket.socket(fileno=descriptor) as channel:
        with warnings.catch_warnings():
            # The process that started this one has shown them already.
            warnings.simplefilter("ignore")
            logging.disable(logging.WARNING)
            for name in preload:
                importlib.import_module(name)
            for name in preload_if_there:
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)
            logging.disable(logging.NOTSET)
        _serve(channel)
    os._exit(0)  # it holds nothing that Python and TensorFlow would have to take down, for long


def serve_as_child(arguments: Mapping[str, Any], descriptor: int) -> int:
    """Serves requests until a socket closes, in a child of a server, which has imported already."""
    with socket.socket(fileno=descriptor) as channel:
        _serve(channel)
    return 0


def die_with_parent(parent: int | None = None) -> None:
    """Has the kernel kill this process when its parent ends.

    Gaining capabilities, as in a new user namespace, undoes that; call it again afterwards.

    Args:
        parent: its process, where that may have ended already; None for the parent of now.
    """
    parent = os.getppid() if parent is None else parent
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was faster
        os._exit(1)


def _serve(channel: socket.socket) -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    server = _Server(channel)
    server.tell(event="ready")
    server.serve()


class _Server:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._children: dict[int, str] = {}
        # An end of a child must wake the wait() in serve().
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started us
        signal.set_wakeup_fd(self._wake)

    def tell(self, **event: Any) -> None:
        with contextlib.suppress(OSError):
            messages.send(self._channel, event)

    def serve(self) -> None:
        try:
            while True:
                readable = wait([self._channel, self._woken])
                if self._woken in readable:
                    os.read(self._woken, 512)
                    self._reap()
                if self._channel in readable:
                    try:
                        request, descriptors = messages.receive(self._channel)
                    except (ConnectionError, OSError):
                        return
                    self._fork(request, descriptors)
        finally:
            for pid in self._children:
                _kill_group(pid)
            _kill_all_children()

    def _reap(self) -> None:
        """Reports the children that have ended, after killing what they left behind."""
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                name = self._children.pop(ended.si_pid, None)
                if name is not None:  # else it was started by a child that is gone
                    # Its number cannot be another's before it is waited for.
                    _kill_group(ended.si_pid)
                _, status = os.waitpid(ended.si_pid, 0)
                if name is not None:
                    if not self._children:  # whose orphans they are is known only now
                        _kill_all_children()
                    self.tell(event="ended", name=name, code=os.waitstatus_to_exitcode(status))

    def _fork(self, request: dict[str, Any], descriptors: Sequence[int]) -> None:
        own_pid = os.getpid()
        with warnings.catch_warnings():
            # Of the threads that importing started: they are idle, and hold no locks.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            self._become_child(request, descriptors, own_pid)
        # Here as well as there: who is told of the child may kill its group at once.
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
            with contextlib.suppress(OSError):  # it may be gone
                os.chdir(request["cwd"])
            module, _, function = request["target"].partition(":")
            run = getattr(importlib.import_module(module), function)
            code = run(request["arguments"], *descriptors[2:])
        except BaseException:
            traceback.print_exc()
        finally:
            internals.PYTHON_ATEXIT_RUN.get()()  # what the child has registered
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os._exit(code)


def _prctl(option: int, argument: int) -> None:
    with contextlib.suppress(AttributeError):  # not on Linux: the closed socket has to do
        ctypes.CDLL(None).prctl(option, argument)


def _lead_group(pid: int) -> None:
    """Gives a child a process group of its own; it may have it already, or be gone."""
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)


def _kill_all_children() -> None:
    """Kills all children of this process, and theirs, which it adopts when they are orphans."""
    end_s = time.monotonic() + _KILL_TIMEOUT_S
    others: set[int] = set()  # programs of another user, such as sudo
    while (pids := set(machine.children(os.getpid())) - others) and time.monotonic() < end_s:
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
