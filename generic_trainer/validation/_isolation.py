"""A model's files at a new path, with the directory of the export out of reach.

Servers load a model from another path than that of the export. A model that reads the old path
works there by accident, so the checks run in a process that sees the files at a new path and
nothing at the old one. The original is never renamed, copied or written, even if the process dies:

- If the kernel allows a private mount namespace, the original is bind-mounted at the new path
  and covered by an empty file system, in that process alone. Its shared memory is its own as well.
  Of a model with links, as in Hugging Face's cache, each file is mounted.
- Elsewhere the new path is a tree of symbolic links. The original stays readable then, and the
  static check on absolute paths finds models that depend on it.
- A remote directory (`gs://...`) has been downloaded: see `_runner`.
"""

import contextlib
import ctypes
import os
from pathlib import Path

import psutil

from generic_trainer._core.files import is_remote
from generic_trainer._core.forkserver.server import die_with_parent

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
# Where the C library keeps named semaphores, which Python's thread pools have.
SHARED_MEMORY = Path("/dev/shm")
_MS_NOSUID = 2
_MS_NODEV = 4
_MS_RDONLY = 1
_MS_REMOUNT = 32
_MS_BIND = 4096
_MS_REC = 16384
_MS_PRIVATE = 1 << 18
_MS_RELATIME = 1 << 21


def move(model_dir: str, target: Path) -> tuple[bool, list[str]]:
    """Makes the files of `model_dir` appear in `target`, for this process at least.

    Returns:
        Whether the original is out of this process's reach, and the links that are not followed.
    """
    if is_remote(model_dir):
        return False, []
    original = Path(model_dir).resolve()
    files = ModelFiles(original)
    # Tried elsewhere first: what fails half-way leaves a process without its rights.
    with contextlib.suppress(OSError):
        if _can_hide(files, target.with_name("tried")):
            _hidden_copy(files, target)
            return True, files.refused
    files.link(target)
    return False, files.refused


class ModelFiles:
    """The files of a local model, with links followed as far as the model's own files go.

    A link may lead to any place of the machine, such as `/proc/self/environ` or a private key, and
    checks read and report the content. Links are followed inside the model and into the directory
    `blobs` beside it, or beside the `snapshots` that hold it, as in Hugging Face's cache.

    Attributes:
        original: the model's directory, without links.
        found: path relative to `original` → the real file, for every file.
        refused: links that are not followed, with their targets.
    """

    def __init__(self, original: Path) -> None:
        self.original = original
        self.found: dict[Path, Path] = {}
        self.refused: list[str] = []
        snapshots = (path for path in original.parents if path.name == "snapshots")
        self._blobs = [path.parent / "blobs" for path in (original, *snapshots)]
        for parent, folders, names in os.walk(original, followlinks=True):
            folder = Path(parent)
            folders[:] = [name for name in folders if self._is_entered(folder / name)]
            for path in (folder / name for name in names):
                real = path.resolve()
                if real.is_relative_to(original) or any(map(real.is_relative_to, self._blobs)):
                    if real.is_file():
                        self.found[path.relative_to(original)] = real
                else:
                    self._refuse(path)

    @property
    def has_links(self) -> bool:
        """Whether a file is behind a link, or a link leads out of the model."""
        return bool(self.refused) or any(self.original / p != r for p, r in self.found.items())

    def link(self, target: Path) -> None:
        """Makes a directory of links to the files."""
        for path, real in self.found.items():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).symlink_to(real)

    def _is_entered(self, folder: Path) -> bool:
        """Returns whether the walk enters a directory: links in linked ones could be endless."""
        if not folder.is_symlink():
            return True
        if not folder.resolve().is_relative_to(self.original):
            self._refuse(folder)
            return False
        return folder.parent.resolve() == folder.parent

    def _refuse(self, path: Path) -> None:
        self.refused.append(f"{path.relative_to(self.original)} -> {os.readlink(path)}")


def make_read_only(work: Path) -> None:
    """Makes every file system read-only in the namespace of a process that `move` has hidden from.

    Args:
        work: the directory that stays writable.

    Raises:
        OSError: a file system stays writable.
    """
    _mount(str(work), work, None, _MS_BIND)
    for mounted in [Path(partition.mountpoint) for partition in psutil.disk_partitions(all=True)]:
        if mounted not in (work, SHARED_MEMORY):
            flags = _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _kept_flags(mounted)
            _mount("none", mounted, None, flags)


def _can_hide(files: ModelFiles, target: Path) -> bool:
    """Tries in a throw-away process whether a model can be hidden here."""
    pid = os.fork()
    if pid == 0:
        try:
            _hidden_copy(files, target)
            os._exit(any(files.original.iterdir()) or not any(target.iterdir()))
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _hidden_copy(files: ModelFiles, target: Path) -> None:
    """Moves a model to `target`, read-only, in the view of this process and its children.

    Raises:
        OSError: the kernel does not allow it.
    """
    uid = os.getuid()
    gid = os.getgid()
    libc_call("unshare", _CLONE_NEWUSER | _CLONE_NEWNS)
    die_with_parent()  # the new user namespace's capabilities have undone it
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _mount("none", Path("/"), None, _MS_REC | _MS_PRIVATE)
    for source, place in _places(files, target):
        _mount(str(source), place, None, _MS_BIND | _MS_REC)
        _mount("none", place, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _kept_flags(place))
    _mount("tmpfs", files.original, b"tmpfs", 0)
    if SHARED_MEMORY.is_dir():
        _mount("tmpfs", SHARED_MEMORY, b"tmpfs", _MS_NOSUID | _MS_NODEV, b"size=64m")


def _places(files: ModelFiles, target: Path) -> list[tuple[Path, Path]]:
    """Returns source and mount point of the model, or of each file if there are links."""
    target.mkdir(parents=True, exist_ok=True)
    if not files.has_links:
        return [(files.original, target)]
    places = [(real, target / path) for path, real in files.found.items()]
    for _, place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    return places


def _kept_flags(mounted: Path) -> int:
    """The mount's own flags, which an unprivileged remount must repeat."""
    flags = os.statvfs(mounted).f_flag
    same = flags & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME)
    return same | (_MS_RELATIME if flags & os.ST_RELATIME else 0)


def _mount(
    source: str, target: Path, kind: bytes | None, flags: int, options: bytes | None = None
) -> None:
    libc_call("mount", source.encode(), os.fsencode(target), kind, flags, options)


def libc_call(function: str, *arguments: int | bytes | None) -> int:
    """Returns the result of a function of the C library.

    Raises:
        OSError: it fails, with its arguments.
        AttributeError: the library does not have it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    wide = (
        ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments
    )
    result: int = getattr(libc, function)(*wide)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{os.strerror(code)}: {function}{arguments}")
    return result
