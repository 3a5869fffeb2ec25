"""Files and folders that lie on a local disk, inside a zip, or behind a `scheme://`.

`pathlib.Path` and `zipfile.Path` share the few methods that packing needs; `RemoteNode` adds the
same ones over `tf.io.gfile`. TensorFlow is imported only for paths with a scheme.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from generic_trainer._core.files import is_remote
from generic_trainer.user_code._paths import split
from generic_trainer.user_code._remote import RemoteNode, write_remote

__all__ = ["Node", "open_folder", "open_node", "write_file"]


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
        write_remote(path, temporary, content)
    else:
        _write_local(path, temporary, content)


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


def _write_local(path: str, temporary: str, content: bytes) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    try:
        Path(temporary).write_bytes(content)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
