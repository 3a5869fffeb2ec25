"""Telling whether files are still the same, without reading all of them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from generic_trainer.errors import DataError
from generic_trainer.files import gfile

__all__ = ["fingerprint"]

# Files up to this size are read whole; of larger ones, both ends and the time of the last change.
_SMALL_BYTES = 4 << 20
_END_BYTES = 64 << 10
_DIGITS = 16


def fingerprint(paths: Sequence[str]) -> str:
    """Returns a digest of the files that some patterns match or directories hold.

    Names count from the directory on: the same files elsewhere have the same fingerprint.

    Raises:
        DataError: something cannot be read.
    """
    try:
        files = [[name, *_of_file(path)] for name, path in _files(paths)]
    except Exception as error:  # what it raises depends on the file system
        raise DataError(
            f"Cannot tell whether {', '.join(paths)} is what an earlier run read: {error}"
        ) from error
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()[:_DIGITS]


def _files(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    for pattern in paths:
        for path in sorted(gfile().glob(pattern)):
            if gfile().isdir(path):
                yield from sorted(_inside(path))
            else:
                yield os.path.basename(path), path


def _inside(directory: str) -> Iterator[tuple[str, str]]:
    for folder, _, names in gfile().walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            yield os.path.relpath(path, directory), path


def _of_file(path: str) -> list[Any]:
    stat = gfile().stat(path)
    with gfile().GFile(path, "rb") as file:
        if stat.length <= _SMALL_BYTES:
            return [stat.length, hashlib.sha256(file.read()).hexdigest()]
        start = file.read(_END_BYTES)
        file.seek(stat.length - _END_BYTES)
        ends = hashlib.sha256(start + file.read(_END_BYTES)).hexdigest()
    return [stat.length, ends, stat.mtime_nsec]
