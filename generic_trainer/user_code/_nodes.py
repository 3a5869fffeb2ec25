"""Files and folders that lie on a local disk, inside a zip, or behind a `scheme://`.

`pathlib.Path` and `zipfile.Path` share the few methods that packing needs; `RemoteNode` adds the
same ones over `tf.io.gfile`. TensorFlow is imported only for paths with a scheme.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from generic_trainer.files import is_remote

__all__ = ["Node", "absolute", "join", "open_folder", "open_node", "split", "write_file"]


class Node(Protocol):
    """A file or folder, there or not."""

    @property
    def name(self) -> str:
        """The last part of the path."""

    def is_file(self) -> bool:
        """Whether it is there and is a file."""

    def is_dir(self) -> bool:
        """Whether it is there and is a folder."""

    def iterdir(self) -> Iterator[Node]:
        """Yields what lies in the folder."""

    def joinpath(self, name: str, /) -> Node:
        """Returns what is called `name` in the folder."""

    def read_bytes(self) -> bytes:
        """Returns the contents of the file."""


def absolute(path: str) -> str:
    """Returns a local path as an absolute one with forward slashes; a remote one as it is."""
    return path if is_remote(path) else Path(os.path.abspath(path)).as_posix()


def join(folder: str, name: str) -> str:
    """Joins with one slash, which every file system takes."""
    return f"{folder.rstrip('/')}/{name}"


def split(path: str) -> tuple[str, str]:
    """Returns the folder and the last part of an absolute path."""
    folder, _, name = path.rpartition("/")
    return folder or "/", name


def open_node(path: str) -> Node:
    """Returns the file or folder at `path`, also when a part of the path is a zip file."""
    node = _plain(path)
    if node.is_file() or node.is_dir():
        return node
    return _inside_zip(path) or node


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
    temporary = f"{path}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
    if is_remote(path):
        _write_remote(path, temporary, content)
    else:
        _write_local(path, temporary, content)


@dataclasses.dataclass(frozen=True)
class RemoteNode:
    """A path of any file system that TensorFlow knows."""

    path: str

    @property
    def name(self) -> str:
        """The last part of the path."""
        return split(self.path)[1]

    def is_file(self) -> bool:
        """Whether it is there and is a file."""
        with _as_os_errors():
            return bool(_gfile().exists(self.path)) and not self.is_dir()

    def is_dir(self) -> bool:
        """Whether it is there and is a folder."""
        with _as_os_errors():
            return bool(_gfile().isdir(self.path))

    def iterdir(self) -> Iterator[RemoteNode]:
        """Yields what lies in the folder."""
        with _as_os_errors():
            names = _gfile().listdir(self.path)
        # Object stores list folders with a slash at the end.
        yield from (self.joinpath(name.rstrip("/")) for name in names)

    def joinpath(self, name: str, /) -> RemoteNode:
        """Returns what is called `name` in the folder."""
        return RemoteNode(join(self.path, name))

    def read_bytes(self) -> bytes:
        """Returns the contents of the file."""
        with _as_os_errors(), _gfile().GFile(self.path, "rb") as file:
            content: bytes = file.read()
            return content


def _gfile() -> Any:
    import tensorflow as tf

    return tf.io.gfile


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(error.message) from error


def _plain(path: str) -> Node:
    return RemoteNode(path) if is_remote(path) else Path(path)


def _inside_zip(path: str) -> Node | None:
    outer = split(path)[0]
    while outer not in ("", "/") and not outer.endswith(":/"):
        node = _plain(outer)
        if node.is_file():
            return _zip_member(node, path[len(outer) + 1 :])
        outer = split(outer)[0]
    return None


def _zip_member(archive: Node, member: str) -> Node | None:
    content = io.BytesIO(archive.read_bytes())
    if not zipfile.is_zipfile(content):
        return None
    root = zipfile.Path(zipfile.ZipFile(content))
    return root.joinpath(member.rstrip("/")) if member else root


def _write_remote(path: str, temporary: str, content: bytes) -> None:
    with _as_os_errors():
        _gfile().makedirs(split(path)[0])
        with _gfile().GFile(temporary, "wb") as file:
            file.write(content)
        _gfile().rename(temporary, path, overwrite=True)


def _write_local(path: str, temporary: str, content: bytes) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    try:
        Path(temporary).write_bytes(content)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
