"""User code on its way to workers: paths of its files, and bundles of them.

`RemoteNode` has the few methods of `pathlib.Path` that packing needs, over `tf.io.gfile`.
TensorFlow is imported only for paths with a scheme.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import struct
import sys
import sysconfig
import zipfile
from collections.abc import Collection, Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TypeAlias

from generic_trainer._core.files import gfile, is_remote, write_whole
from generic_trainer.errors import ModuleFileError

# Two copies of this package in one process would not recognise each other's classes, so a checkout
# of it beside a module file is never packed.
OWN_PACKAGE = __name__.partition(".")[0]
# Top-level names that mean the standard library, or the running script, whoever imports them.
STANDARD_NAMES = sys.stdlib_module_names | {"__main__"}
NEVER_PACKED = STANDARD_NAMES | {OWN_PACKAGE}
_STANDARD = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib")]  # slow: asked once
_EARLIEST_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
_ORIGIN_KEY = "folder"


def lies_in_environment(path: str) -> bool:
    """Whether `path` is in site-packages, dist-packages or the standard library."""
    local = Path(path)
    if {"site-packages", "dist-packages"}.intersection(local.parts):
        return True
    return any(map(local.is_relative_to, _STANDARD))


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


@dataclasses.dataclass(frozen=True)
class UserCode:
    """All that a worker needs to find the user's function, as plain strings.

    Attributes:
        module: dotted name to import, such as "penguin_keras" or "package.module".
        function: name of the function in that module.
        bundle: path or URI of the bundle; None when the module is installed on the worker.
        digest: SHA-256 in hex over the names and contents of the bundle; None without a bundle.
    """

    module: str
    function: str = "run_fn"
    bundle: str | None = None
    digest: str | None = None


@dataclasses.dataclass(frozen=True)
class Bundle:
    """The user's files.

    Attributes:
        files: path relative to the user's folder, with forward slashes → contents.
        origin: the user's folder on the machine where the bundle was made, for messages.
    """

    files: Mapping[str, bytes]
    origin: str

    @property
    def modules(self) -> set[str]:
        """The top-level modules and packages in it; paths that lead out of it have none."""
        return {top_level(path) for path in self.files if ".." not in path.split("/")} - {""}

    def file_of(self, module: str) -> str | None:
        """Returns the path of a module's source, None if it has none here."""
        stem = module.replace(".", "/")
        paths = (f"{stem}/__init__.py", f"{stem}.py")
        return next((path for path in paths if path in self.files), None)

    def digest(self) -> str:
        """Returns the SHA-256 in hex over paths and contents, each preceded by its length."""
        digest = hashlib.sha256()
        for path in sorted(self.files):
            for part in (path.encode(), self.files[path]):
                digest.update(struct.pack(">Q", len(part)))
                digest.update(part)
        return digest.hexdigest()

    def to_zip(self) -> bytes:
        """Returns a zip of the same bytes for the same files; `origin` goes into its comment."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.comment = json.dumps({_ORIGIN_KEY: self.origin}).encode()
            for path in sorted(self.files):
                entry = zipfile.ZipInfo(path, _EARLIEST_ZIP_TIME)
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, self.files[path], zipfile.ZIP_DEFLATED)
        return buffer.getvalue()

    def unpack(self, folder: Path, modules: Collection[str]) -> None:
        """Writes the files of `modules` into `folder`, and none outside of it."""
        for path, content in self.files.items():
            if top_level(path) in modules and ".." not in path.split("/"):
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)


def read_bundle(code: UserCode) -> Bundle:
    """Reads the bundle of `code`.

    Raises:
        ModuleFileError: it is missing, damaged, or not the one that was packed.
    """
    subject = f"The bundle of module {code.module!r}, {code.bundle},"
    remedy = "Run the pipeline definition again to write it anew."
    try:
        content = open_node(code.bundle or "").read_bytes()
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            files = {member.filename: archive.read(member) for member in members}
            comment = json.loads(archive.comment or b"{}")
        bundle = Bundle(files, str(comment.get(_ORIGIN_KEY, code.bundle)))
    except Exception as error:  # zipfile has a dozen, by what is damaged and how it is compressed
        raise ModuleFileError(
            f"{subject} cannot be read: {error or type(error).__name__}. {remedy}", path=code.bundle
        ) from error
    digest = bundle.digest()
    if code.digest not in (None, digest):
        raise ModuleFileError(
            f"{subject} is not the one that was packed: expected the digest {code.digest}, found "
            f"{digest}. {remedy}",
            path=code.bundle,
        )
    return bundle


def top_level(path: str) -> str:
    """Returns the top-level module or package that a path or a dotted name belongs to."""
    return path.partition("/")[0].partition(".")[0]
