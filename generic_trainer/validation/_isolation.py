"""A model's files at a new path, with the directory they were exported to out of reach.

A served model lies elsewhere than where it was exported. What still reads the old path works
there by accident, so the checks run in a process that sees the files at a new path and nothing at
the old one. The original is never renamed, copied or written, whatever happens to the process:

- Where the kernel allows a private mount namespace, the original is bind-mounted at the new path
  and covered by an empty file system, in that process alone. Its shared memory is its own as well.
  Of a model with links to files elsewhere, as in Hugging Face's cache, each file is mounted.
- Elsewhere the new path is a tree of symbolic links. The original stays readable then, and the
  static check on absolute paths is what finds a model that depends on it.
- A remote directory (`gs://...`) has been downloaded: see `_inputs`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
from pathlib import Path

from generic_trainer._core.files import is_remote
from generic_trainer._core.forkserver.server import die_with_parent
from generic_trainer._core.scratch import ScratchFolder

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
# Where the C library keeps named semaphores, which Python's thread pools have.
SHARED_MEMORY = Path("/dev/shm")
_MS_NOSUID, _MS_NODEV = 2, 4
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC = 1, 32, 4096, 16384
_MS_PRIVATE, _MS_RELATIME = 1 << 18, 1 << 21


def move(model_dir: str, target: Path) -> bool:
    """Makes the files of `model_dir` appear in `target`, for this process at least.

    Returns:
        Whether the original is out of this process's reach.
    """
    if is_remote(model_dir):
        return False
    original = Path(model_dir).resolve()
    # Tried elsewhere first: what fails half-way leaves a process without its rights.
    with contextlib.suppress(OSError):
        if _can_hide():
            _hidden_copy(original, target)
            return True
    target.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # of what this user may not read; the others are linked
        shutil.copytree(original, target, copy_function=os.symlink, dirs_exist_ok=True)
    return False


def make_read_only(work: Path) -> None:
    """Makes every file system read-only in the namespace of a process that `move` has hidden from.

    Args:
        work: the directory that stays writable.

    Raises:
        OSError: a file system stays writable.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _mount(libc, str(work), work, None, _MS_BIND)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        # proc(5): the fifth field, in which \040 is a blank.
        mounted = Path(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), line.split()[4]))
        if mounted not in (work, SHARED_MEMORY):
            flags = _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _kept_flags(mounted)
            _mount(libc, "none", mounted, None, flags)


def _can_hide() -> bool:
    """Tries in a throw-away process whether directories can be hidden here."""
    with ScratchFolder("isolation-") as folder:
        original, target = Path(folder, "original"), Path(folder, "target")
        original.mkdir()
        (original / "file").touch()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(OSError, AttributeError):
                _hidden_copy(original.resolve(), target)
            os._exit((original / "file").exists() or not (target / "file").exists())
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _hidden_copy(original: Path, target: Path) -> None:
    """Moves `original` to `target`, read-only, in the view of this process and its children.

    Raises:
        OSError: the kernel does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    die_with_parent()  # the new user namespace's capabilities have undone it
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _mount(libc, "none", Path("/"), None, _MS_REC | _MS_PRIVATE)
    for source, place in _places(original, target):
        _mount(libc, str(source), place, None, _MS_BIND | _MS_REC)
        _mount(libc, "none", place, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _kept_flags(place))
    _mount(libc, "tmpfs", original, b"tmpfs", 0)
    if SHARED_MEMORY.is_dir():
        _mount(libc, "tmpfs", SHARED_MEMORY, b"tmpfs", _MS_NOSUID | _MS_NODEV, b"size=64m")


def _places(original: Path, target: Path) -> list[tuple[Path, Path]]:
    """Returns what is mounted where: the model, or file by file where links lead out of it.

    A relative link leads elsewhere from another path. What the files are mounted on is made here.
    """
    target.mkdir(parents=True, exist_ok=True)
    places = {}
    for parent, folders, files in os.walk(original):
        for path in (Path(parent, name) for name in (*folders, *files)):
            real = path.resolve()
            # What leads to a folder above the model has no end.
            if (path.is_symlink() or path.is_file()) and not original.is_relative_to(real):
                places[target / path.relative_to(original)] = real
    if all(real.is_relative_to(original) for real in places.values()):
        return [(original, target)]
    existing = [(real, place) for place, real in places.items() if real.exists()]
    for real, place in existing:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir() if real.is_dir() else place.touch()
    return existing


def _kept_flags(mounted: Path) -> int:
    """The mount's own flags, which an unprivileged remount must repeat."""
    flags = os.statvfs(mounted).f_flag
    same = flags & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME)
    return same | (_MS_RELATIME if flags & os.ST_RELATIME else 0)


def _mount(
    libc: ctypes.CDLL,
    source: str,
    target: Path,
    kind: bytes | None,
    flags: int,
    options: bytes | None = None,
) -> None:
    if libc.mount(source.encode(), os.fsencode(target), kind, ctypes.c_ulong(flags), options):
        raise OSError(ctypes.get_errno(), f"mount {source} at {target}")
