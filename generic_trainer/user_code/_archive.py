"""User code on its way to workers: the name of a function, and the bundle with its module."""

import dataclasses
import hashlib
import io
import json
import struct
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path

from generic_trainer.errors import ModuleFileError
from generic_trainer.user_code._sources import open_node

_EARLIEST_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
_ORIGIN_KEY = "folder"


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
