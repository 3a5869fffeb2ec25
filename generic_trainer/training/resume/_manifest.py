"""What makes a checkpoint complete: the list of its files with their sizes and checksums."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from generic_trainer._core.files import gfile, is_remote

__all__ = ["Manifest", "read_manifest", "sync", "write_manifest"]

_MANIFEST_FILE = "manifest.json"
_CHUNK_BYTES = 1 << 22


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The content of a complete checkpoint.

    Attributes:
        step: the step that it was saved at.
        metadata: what the writer added.
        files: relative path → [size in bytes, SHA-256 in hex].
    """

    step: int
    metadata: Mapping[str, Any]
    files: Mapping[str, list[Any]]


def write_manifest(directory: str, step: int, metadata: Mapping[str, Any]) -> None:
    """Writes the manifest of all files in a directory, after they have reached the disk."""
    files = {}
    for name in _files_in(directory):
        path = os.path.join(directory, name)
        sync(path)
        files[name] = _fingerprint(path)
    manifest = Manifest(step, metadata, files)
    path = os.path.join(directory, _MANIFEST_FILE)
    with gfile().GFile(path, "w") as file:
        file.write(json.dumps(dataclasses.asdict(manifest), indent=1, sort_keys=True))
    sync(path)
    sync(directory)


def read_manifest(directory: str) -> Manifest:
    """Returns the manifest of a directory whose files are all there and unaltered.

    Raises:
        ValueError: it is torn or altered; the message tells which file and how.
    """
    path = os.path.join(directory, _MANIFEST_FILE)
    if not gfile().exists(path):
        raise ValueError(f"it has no {_MANIFEST_FILE}, so it was never finished")
    try:
        with gfile().GFile(path) as file:
            manifest = Manifest(**json.loads(file.read()))
    except (TypeError, ValueError) as error:
        raise ValueError(f"its {_MANIFEST_FILE} is damaged ({error})") from error
    for name, expected in manifest.files.items():
        _check(directory, name, expected)
    return manifest


def _check(directory: str, name: str, expected: list[Any]) -> None:
    path = os.path.join(directory, name)
    if not gfile().exists(path):
        raise ValueError(f"its file {name} is missing")
    found = _fingerprint(path)
    if found[0] != expected[0]:
        raise ValueError(f"its file {name} has {found[0]:,} bytes instead of {expected[0]:,}")
    if found != expected:
        raise ValueError(f"its file {name} was altered: the checksum differs")


def _files_in(directory: str) -> Iterator[str]:
    for folder, _, names in gfile().walk(directory):
        for name in sorted(names):
            yield os.path.relpath(os.path.join(folder, name), directory)


def _fingerprint(path: str) -> list[Any]:
    size, digest = 0, hashlib.sha256()
    with gfile().GFile(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            size += len(chunk)
            digest.update(chunk)
    return [size, digest.hexdigest()]


def sync(path: str) -> None:
    """Waits until a local file or directory is on the disk; an object store does so by itself."""
    if is_remote(path):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
