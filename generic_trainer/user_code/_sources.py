"""Paths of source code: on a local disk, behind a `scheme://`, in the environment.

`RemoteNode` has the few methods of `pathlib.Path` that packing needs, over `tf.io.gfile`.
TensorFlow is imported only for paths with a scheme.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TypeAlias

from generic_trainer._core.files import gfile, is_remote, write_whole

# Two copies of this package in one process would not recognise each other's classes, so a checkout
# of it beside a module file is never packed.
OWN_PACKAGE = __name__.partition(".")[0]

# Top-level names that mean the standard library, or the running script, whoever imports them.
STANDARD_NAMES = sys.stdlib_module_names | {"__main__"}


def lies_in_environment(path: str) -> bool:
    """Whether `path` is in site-packages, dist-packages or the standard library."""
    local = Path(path)
    if {"site-packages", "dist-packages"}.intersection(local.parts):
        return True
    return any(local.is_relative_to(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib"))


def installed_at(name: str) -> str | None:
    """Returns the path of the installed top-level module `name`; None if it is not installed.

    Folders without `__init__.py` do not count: Python prefers a regular package.
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
Node: TypeAlias = Path | RemoteNode


def open_node(path: str) -> Node:
    """Returns the file or folder at `path`."""
    return RemoteNode(path) if is_remote(path) else Path(path)


def write_file(path: str, content: bytes) -> None:
    """Writes `path` atomically on local file systems; leaves an equal file as it is.

    Raises:
        OSError: it cannot be written.
    """
    node = open_node(path)
    if node.is_file() and node.read_bytes() == content:
        return
    if not is_remote(path):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
        return
    with _as_os_errors():
        gfile().makedirs(os.path.dirname(path))
        write_whole(path, content)


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(error.message) from error
