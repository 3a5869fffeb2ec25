"""The process that workers are forked from: it imports once, forks, and tells who ended how.

Orders come as JSON over a socket, each with the two descriptors that are to be standard output and
error of the new worker. When the socket closes, by whatever end of the process that started this
one, all workers are killed, with all that they have started.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any

__all__ = ["main"]

_ORDER_BYTES = 1 << 20
# prctl(2) on Linux.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# The kernel shall rather kill a worker than the process that can report it.
_OOM_SCORE = "500"


def main(descriptor: int, preload: Sequence[str]) -> None:
    """Serves orders until the socket closes.

    Args:
        descriptor: the socket.
        preload: modules to import.
    """
    with socket.socket(fileno=descriptor) as channel:
        with warnings.catch_warnings():
            # The process that started this one has shown them already.
            warnings.simplefilter("ignore")
            for name in preload:
                importlib.import_module(name)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        nursery = _Nursery(channel)
        nursery.tell(event="ready")
        nursery.serve()


class _Nursery:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._workers: dict[int, str] = {}
        # An end of a worker must wake the wait() in serve().
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started us
        signal.set_wakeup_fd(self._wake)

    def tell(self, **event: Any) -> None:
        with contextlib.suppress(OSError):
            self._channel.sendall(json.dumps(event).encode() + b"\n")

    def serve(self) -> None:
        try:
            while True:
                readable = wait([self._channel, self._woken])
                if self._woken in readable:
                    os.read(self._woken, 512)
                    self._bury()
                if self._channel in readable:
                    order, descriptors, _, _ = socket.recv_fds(self._channel, _ORDER_BYTES, 2)
                    if not order:
                        return
                    self._fork(json.loads(order), descriptors)
        finally:
            for pid in self._workers:
                _kill_group(pid)

    def _bury(self) -> None:
        """Tells of the workers that have ended, after killing what they left behind."""
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                name = self._workers.pop(ended.si_pid, None)
                if name is not None:  # else it was started by a worker that is gone
                    # Its number cannot be another's before it is waited for.
                    _kill_group(ended.si_pid)
                _, status = os.waitpid(ended.si_pid, 0)
                if name is not None:
                    self.tell(event="ended", worker=name, code=os.waitstatus_to_exitcode(status))

    def _fork(self, order: dict[str, Any], descriptors: Sequence[int]) -> None:
        with warnings.catch_warnings():
            # Of the threads that importing started: they are idle, and hold no locks.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            self._become_worker(order, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self._workers[pid] = order["worker"]
        self.tell(event="started", worker=order["worker"], pid=pid)

    def _become_worker(self, order: dict[str, Any], descriptors: Sequence[int]) -> None:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            _die_with_parent()
            for descriptor, target in zip(descriptors, (1, 2), strict=True):
                os.dup2(descriptor, target)
                os.close(descriptor)
            self._channel.close()
            os.close(self._woken)
            os.close(self._wake)
            atexit._clear()
            from generic_trainer.launchers.local import _worker_process

            code = _worker_process.main(order)
        except BaseException:
            traceback.print_exc()
        finally:
            atexit._run_exitfuncs()  # what the user's code has registered
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os._exit(code)


def _die_with_parent() -> None:
    nursery = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(_OOM_SCORE)
    if os.getppid() != nursery:  # it was faster
        os._exit(1)


def _prctl(option: int, argument: int) -> None:
    with contextlib.suppress(AttributeError):  # not on Linux: the closed socket has to do
        ctypes.CDLL(None).prctl(option, argument)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
