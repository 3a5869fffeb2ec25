"""Paths of source code: on a local disk, inside a zip, behind a `scheme://`, in the environment.

`pathlib.Path` and `zipfile.Path` share the few methods that packing needs; `RemoteNode` adds the
same ones over `tf.io.gfile`. TensorFlow is imported only for paths with a scheme.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TypeAlias

from generic_trainer._core.files import gfile, is_remote, write_whole

# Two copies of this package in one process would not recognise each other's classes, so a checkout
# of it that lies beside a module file is never packed.
OWN_PACKAGE = __name__.partition(".")[0]

# Top-level names that mean the standard library, or the running script, whoever imports them.
STANDARD_NAMES = sys.stdlib_module_names | {"__main__"}


def lies_in_environment(path: str) -> bool:
    """Whether `path` lies in site-packages, dist-packages or the standard library."""
    local = Path(path)
    if {"site-packages", "dist-packages"}.intersection(local.parts):
        return True
    return any(local.is_relative_to(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib"))


def installed_at(name: str) -> str | None:
    """Returns where the environment has the top-level module `name`; None when it has not.

    Folders without `__init__.py` do not count: to Python they are nothing if a real one exists.
    """
    if name in STANDARD_NAMES:
        return "the standard library"
    spec = PathFinder.find_spec(name, [path for path in sys.path if lies_in_environment(path)])
    return spec.origin if spec else None


@dataclasses.dataclass(frozen=True)
class RemoteNode:
    """A path of any file system that TensorFlow knows, as a `Node`."""

    path: str

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    def is_file(self) -> bool:
        with _as_os_errors():
            return bool(gfile().exists(self.path)) and not self.is_dir()

    def is_dir(self) -> bool:
        with _as_os_errors():
            return bool(gfile().isdir(self.path))

    def iterdir(self) -> Iterator[RemoteNode]:
        with _as_os_errors():
            names = gfile().listdir(self.path)
        # Object stores list folders with a slash at the end.
        yield from (self.joinpath(name.rstrip("/")) for name in names)

    def joinpath(self, name: str, /) -> RemoteNode:
        return RemoteNode(os.path.join(self.path, name))

    def read_bytes(self) -> bytes:
        with _as_os_errors(), gfile().GFile(self.path, "rb") as file:
            content: bytes = file.read()
            return content


# A file or folder, there or not.
Node: TypeAlias = Path | zipfile.Path | RemoteNode


def open_node(path: str) -> Node:
    """Returns the file or folder at `path`, also when a part of the path is a zip file."""
    node = _plain(path)
    if node.is_file() or node.is_dir():
        return node
    return _inside_zip(path) or node


def read_file(node: Node) -> bytes:
    """Returns the content of a file.

    Raises:
        OSError: it cannot be read, or not be unpacked.
    """
    try:
        return node.read_bytes()
    except OSError:
        raise
    except Exception as error:  # zipfile has a dozen, by what is damaged and how it is compressed
        raise OSError(f"it cannot be unpacked: {error or type(error).__name__}") from error


def open_folder(path: str) -> Node:
    """Returns the folder at `path`, which may be a zip file or lie in one."""
    node = _plain(path)
    return node if node.is_dir() else _inside_zip(f"{path}/") or node


def write_file(path: str, content: bytes) -> None:
    """Writes `path` so that a reader sees all of it or none; writes nothing if it is the same.

    Raises:
        OSError: it cannot be written.
    """
    node = _plain(path)
    if node.is_file() and node.read_bytes() == content:
        return
    if not is_remote(path):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
        return
    temporary = f"{path}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
    with _as_os_errors():
        gfile().makedirs(os.path.dirname(path))
        with gfile().GFile(temporary, "wb") as file:
            file.write(content)
        gfile().rename(temporary, path, overwrite=True)


def _plain(path: str) -> Node:
    return RemoteNode(path) if is_remote(path) else Path(path)


def _inside_zip(path: str) -> Node | None:
    outer = os.path.dirname(path)
    while outer not in ("", "/"):
        node = _plain(outer)
        if node.is_file():
            return _zip_member(node, path[len(outer) + 1 :])
        outer = os.path.dirname(outer)
    return None


def _zip_member(archive: Node, member: str) -> Node | None:
    content = io.BytesIO(archive.read_bytes())
    if not zipfile.is_zipfile(content):
        return None
    try:
        opened = zipfile.ZipFile(content)
        opened.filename = str(archive)  # which `zipfile.Path` asks for
        root = zipfile.Path(opened)
    except Exception as error:  # see `read_file`
        raise OSError(f"{archive} is a damaged zip file: {error}") from error
    return root.joinpath(member.rstrip("/")) if member else root


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(error.message) from error
