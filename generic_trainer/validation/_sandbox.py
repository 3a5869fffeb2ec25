"""Limits of the process that runs a model: files, network, processes, the size of a file.

A model is a program, and the checks run it. The static checks refuse a model that reads, writes or
connects, without running it; these limits stop ops that they overlook, or that a contract allows.
They work without privileges, in containers too:

- Landlock (Linux 5.13) makes all files read-only except below one directory, and files in the
  user's home, beside temporary files and in `/run` unreadable.
- A seccomp filter refuses sockets and new processes; threads may be started.
- `RLIMIT_FSIZE` bounds a file, `RLIMIT_NPROC` the threads, for any user but root.

Sources: https://docs.kernel.org/userspace-api/landlock.html, .../seccomp_filter.html, prctl(2).
"""

import contextlib
import ctypes
import errno
import os
import platform
import re
import resource
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from generic_trainer._core.machine import MIB
from generic_trainer._core.scratch import look_up_temp_dir, system_temp_dir
from generic_trainer.validation._isolation import SHARED_MEMORY, libc_call, make_read_only

_MAX_FILE_BYTES = 256 * MIB  # what the rehearsal of an Evaluator writes is a thousandth of it
_MAX_THREADS = 4096  # of a model; TensorFlow's pools have a few for each processor

_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_ABI_REQUEST = 1
_PATH_BENEATH = 1
_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_TRUNCATE = 1 << 14
_IOCTL_DEVICE = 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_DEVICE = _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEVICE
_TCP = 0b11  # bind, connect
_OUTSIDE = 0b11  # abstract Unix sockets, signals
_HIDDEN = ("/dev", "/run", "/tmp", "/var/run", "/var/tmp")
# What a program expects of a machine, and the accelerators of all makers.
_DEVICES = re.compile(
    r"null|zero|full|u?random|tty|nvidia.*|dri|kfd|dxg|accel.*|neuron.*|infiniband|vfio"
)

_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_CLONE_THREAD = 0x00010000
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000
_LOAD, _IF_EQUAL, _IF_SET, _RETURN = 0x20, 0x15, 0x45, 0x06  # of the Berkeley packet filter
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in seccomp_data, little-endian
_CLONE3 = 435
_X32 = 0x40000000
# Machine → its AUDIT_ARCH, the number of clone, and those of the calls that are refused: socket,
# fork, vfork, execve, execveat, io_uring_setup.
_CALLS = {
    "x86_64": (0xC000003E, 56, (41, 57, 58, 59, 322, 425)),
    "aarch64": (0xC00000B7, 220, (198, 221, 281, 425)),
}


def confine(*, work: Path, readable: Iterable[str | Path], has_namespace: bool) -> list[str]:
    """Confines this process and all threads that it will start, for good.

    Args:
        work: the one directory that may be written to, for temporary files and as the home. So
            may shared memory, which is private to the process if `_isolation` can make it so.
        readable: files and directories that stay readable although they are in a home or beside
            temporary files: libraries, the model, the examples.
        has_namespace: whether the process has a private mount namespace, from `_isolation.move`. On
            a kernel without Landlock it keeps files from being written, though not from being read.

    Returns:
        What it is not protected from, because the system does not allow it.
    """
    places = (*_HIDDEN, os.path.expanduser("~"), system_temp_dir())
    hidden = {os.path.realpath(path) for path in places}
    os.environ["HOME"] = str(work)
    os.environ["TMPDIR"] = str(work)
    look_up_temp_dir()
    _limit(resource.RLIMIT_FSIZE, _MAX_FILE_BYTES)
    _limit(resource.RLIMIT_CORE, 0)  # of a model that crashes: gigabytes, and nobody's to debug
    _limit(resource.RLIMIT_NPROC, _running_threads() + _MAX_THREADS)
    attempts: dict[str, Callable[[], None]] = {
        "writing to files of this machine": lambda: _protect_files(
            work, readable, hidden, has_namespace
        ),
        "connections and new processes": _refuse_calls,
    }
    missing = []
    for danger, protect in attempts.items():
        try:
            protect()
        except (OSError, AttributeError, KeyError):
            missing.append(danger)
    return missing


def _limit(kind: int, limit: int) -> None:
    with contextlib.suppress(OSError, ValueError):  # it is lower already
        resource.setrlimit(kind, (limit, limit))


def _running_threads() -> int:
    """Returns how many threads the whole system runs: the limit counts all of a user's."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    return 1 << 16


# ---- Landlock ------------------------------------------------------------------------------------


def _protect_files(
    work: Path, readable: Iterable[str | Path], hidden: Collection[str], has_namespace: bool
) -> None:
    try:
        abi = libc_call("syscall", _CREATE_RULESET, None, 0, _ABI_REQUEST)
    except OSError:
        if not has_namespace:
            raise
        make_read_only(work)
        return
    # Rights came with the versions: REFER 2, TRUNCATE 3, TCP 4, IOCTL_DEV 5, scopes 6.
    handled = (1 << (13 + (abi >= 2) + (abi >= 3) + (abi >= 5))) - 1
    attributes = struct.pack("=QQQ", handled, _TCP * (abi >= 4), _OUTSIDE * (abi >= 6))
    ruleset = libc_call("syscall", _CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for path in (*_beside(Path("/"), hidden), *map(Path, readable)):
            _allow(ruleset, path, _READ & handled)
        for entry in os.scandir("/dev"):
            if _DEVICES.fullmatch(entry.name):
                _allow(ruleset, Path(entry.path), (_DEVICE | _READ_DIR) & handled)
        for path in (work, SHARED_MEMORY):
            _allow(ruleset, path, handled)
        _set_no_new_privileges()
        libc_call("syscall", _RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _beside(folder: Path, hidden: Collection[str]) -> Iterator[Path]:
    """Yields the entries of a directory, and below it, without hidden ones."""
    for entry in os.scandir(folder):
        if entry.is_symlink() or entry.path in hidden:
            continue  # the target of a link is allowed, or not, by its own path
        path = Path(entry.path)
        if any(Path(hidden_path).is_relative_to(path) for hidden_path in hidden):
            with contextlib.suppress(OSError):  # this user may not look into it
                yield from _beside(path, hidden)
        else:
            yield path


def _allow(ruleset: int, path: Path, rights: int) -> None:
    """Allows some rights on a file, or on a directory and all that is below it."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # it is gone, or was never there
        return
    try:
        rights &= -1 if os.path.isdir(path) else _OF_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        libc_call("syscall", _ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


# ---- seccomp -------------------------------------------------------------------------------------


def _refuse_calls() -> None:
    architecture, clone, refused = _CALLS[platform.machine()]
    refuse = _REFUSE | errno.EACCES
    program = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_IF_EQUAL, architecture, 1, 0),
        _step(_RETURN, refuse),
        _step(_LOAD, _NUMBER),
        # Calls of the x32 ABI have the same architecture, and numbers of their own.
        _step(_IF_SET, _X32, 0, 1),
        _step(_RETURN, refuse),
    ]
    # The C library takes clone for clone3 then, whose flags a filter can see.
    answers = {_CLONE3: _REFUSE | errno.ENOSYS, **dict.fromkeys(refused, refuse)}
    for number, answer in answers.items():
        program += [_step(_IF_EQUAL, number, 0, 1), _step(_RETURN, answer)]
    program += [
        _step(_IF_EQUAL, clone, 0, 3),
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(_IF_SET, _CLONE_THREAD, 1, 0),
        _step(_RETURN, refuse),
        _step(_RETURN, _ALLOW),
    ]
    steps = ctypes.create_string_buffer(b"".join(program))
    filter_program = struct.pack("@HP", len(program), ctypes.addressof(steps))
    _set_no_new_privileges()
    libc_call("prctl", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, filter_program, 0, 0)


def _step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)


def _set_no_new_privileges() -> None:
    libc_call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
