"""The bundle file: a zip with the same bytes for the same contents."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from generic_trainer.errors import ModuleFileError
from generic_trainer.user_code._code import UserCode
from generic_trainer.user_code._nodes import open_node

__all__ = ["digest_of", "pack", "unpack"]

_EARLIEST_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
_ORIGIN = "folder"


def digest_of(files: Mapping[str, bytes]) -> str:
    """Returns the SHA-256 in hex over names and contents, each preceded by its length."""
    digest = hashlib.sha256()
    for name in sorted(files):
        for part in (name.encode(), files[name]):
            digest.update(struct.pack(">Q", len(part)))
            digest.update(part)
    return digest.hexdigest()


def pack(files: Mapping[str, bytes], origin: str) -> bytes:
    """Returns a zip of `files`; `origin`, the user's own folder, goes into its comment."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = json.dumps({_ORIGIN: origin}).encode()
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EARLIEST_ZIP_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, files[name])
    return buffer.getvalue()


def unpack(code: UserCode, folder: Path, wanted: Callable[[str], bool]) -> str:
    """Writes those files of the bundle into `folder` whose top-level module name is `wanted`.

    Returns:
        The user's own folder, as it was where the bundle was made.

    Raises:
        ModuleFileError: the bundle is missing, damaged, or not the one that was packed.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(open_node(code.bundle or "").read_bytes())) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
            origin = json.loads(archive.comment or b"{}").get(_ORIGIN, code.bundle)
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ModuleFileError(
            f"The bundle of module {code.module!r} cannot be read: {code.bundle} ({error}). "
            "Run the pipeline definition again to write it anew."
        ) from error
    _check(code, digest_of(files))
    for name, content in files.items():
        if wanted(top_level(name)):
            _write(folder, name, content)
    return str(origin)


def top_level(name: str) -> str:
    """Returns the module name that a file of the bundle belongs to."""
    return name.partition("/")[0].partition(".")[0]


def _check(code: UserCode, digest: str) -> None:
    if code.digest not in (None, digest):
        raise ModuleFileError(
            f"The bundle of module {code.module!r} is not the one that was packed: {code.bundle} "
            f"has the digest {digest}, expected {code.digest}. "
            "Run the pipeline definition again to write it anew."
        )


def _write(folder: Path, name: str, content: bytes) -> None:
    target = folder / name
    if not target.resolve().is_relative_to(folder.resolve()):
        raise ModuleFileError(f"The bundle names a file outside of itself: {name}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
