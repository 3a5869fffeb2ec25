"""Paths as text: absolute, with forward slashes, and perhaps with a scheme."""

from __future__ import annotations

import os
from pathlib import Path

from generic_trainer._core.files import is_remote

__all__ = ["absolute", "join", "split"]


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
