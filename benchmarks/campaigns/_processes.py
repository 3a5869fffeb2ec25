"""Processes of a campaign: forked from one that has imported everything, looked for, waited for."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from generic_trainer.errors import GenericTrainerError

# Exit codes of `fork`: the function has raised an error of this package, or any other.
HOUSE_ERROR, RAW_ERROR = 3, 1
TIMEOUT_S = 300.0
_PR_SET_CHILD_SUBREAPER = 36


class Violation(Exception):
    """What must never happen has happened."""


class ForkedPopen(subprocess.Popen):  # type: ignore[type-arg]
    """A process that runs `python ... -c CODE ARGUMENTS`, or `-m MODULE`, in a fork of this one.

    Attributes:
        left: how many more are forked; TensorFlow's threads, once it has computed something, would
            be missing in a fork.
    """

    left = 1

    def _execute_child(self, args: Any, *rest: Any) -> None:
        flag = next((each for each in args if each in ("-c", "-m")), None)
        if flag is None or not ForkedPopen.left:
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        ForkedPopen.left -= 1
        pass_fds, cwd, env = rest[3:6]
        stdin, to_stdin, from_stdout, stdout, from_stderr, stderr = rest[9:15]
        self.pid = os.fork()
        if self.pid:
            self._child_created = True
            pairs = ((stdin, to_stdin), (stdout, from_stdout), (stderr, from_stderr))
            for inner, outer in pairs:
                if -1 not in (inner, outer):
                    os.close(inner)
            return
        try:
            os.setsid()
            for descriptor, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
                if descriptor != -1:
                    os.dup2(descriptor, target)
            _close_all_but({0, 1, 2, *pass_fds})
            if cwd is not None:
                os.chdir(cwd)
            if env is not None:
                os.environ.clear()
                os.environ.update(env)
            tempfile.tempdir = None  # a new process would ask the environment
            code = args.index(flag)
            sys.argv = [flag, *args[code + 2 :]]
            if flag == "-c":
                exec(args[code + 1], {"__name__": "__main__"})
            else:
                runpy.run_module(args[code + 1], run_name="__main__")
            os._exit(0)
        except SystemExit as end:
            os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
        except BaseException:
            traceback.print_exc()
            os._exit(1)


def _close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def adopt_orphans() -> None:
    """Makes this process the parent of what its descendants leave behind, so that it is seen."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def fork(function: Callable[[], Any], output: Path) -> int:
    """Calls a function in a fork of this process; returns its number.

    It exits with what the function returns, or with 0, HOUSE_ERROR or RAW_ERROR.

    Args:
        function: what to call.
        output: file that standard output and error are appended to.
    """
    gc.collect()
    pid = os.fork()
    if pid:
        return pid
    code = RAW_ERROR
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with open(output, "ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = function() or 0
    except GenericTrainerError:
        traceback.print_exc()
        code = HOUSE_ERROR
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


def finish(pid: int, timeout_s: float = TIMEOUT_S) -> int:
    """Waits for a child to end; returns its exit code, -N after signal N.

    Raises:
        Violation: it hangs.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    raise Violation(f"a run did not end within {timeout_s:g} s")


def has_ended(pid: int) -> bool:
    """Whether a child has ended; it can still be waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def descendants(root: int | None = None) -> dict[int, int]:
    """Returns process → parent of all that run below a process; None for this one."""
    root = os.getpid() if root is None else root
    table = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    table[int(entry.name)] = int(fields[1])
    found: dict[int, int] = {}
    size = -1
    while size < len(found):
        size = len(found)
        found.update(
            (pid, parent) for pid, parent in table.items() if parent == root or parent in found
        )
    return found


def command_of(pid: int) -> str:
    """Returns the Python file that a process runs, else its program; "" when it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        program = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
    return next((Path(word).stem for word in words if word.endswith(".py")), program)


def kill_all() -> None:
    """Kills what runs below this process."""
    while left := descendants():
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def require_silence(but: int | None = None, timeout_s: float = 20.0) -> None:
    """Requires that nothing runs below this process any more, `but` this process.

    Raises:
        Violation: something does.
    """
    deadline = time.monotonic() + timeout_s
    while left := descendants().keys() - {but}:
        if time.monotonic() > deadline:
            raise Violation(f"still running: {sorted(map(command_of, left))}")
        time.sleep(0.02)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
