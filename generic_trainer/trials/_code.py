"""The user's code, kept with a checkpoint."""

from __future__ import annotations

import functools
import os
import sys

from generic_trainer._core.files import gfile
from generic_trainer.user_code._collect import collect

__all__ = ["code_file", "write_code"]


def code_file(module: str) -> str | None:
    """Returns the file of a module; None if it has none, in a notebook say."""
    return getattr(sys.modules.get(module), "__file__", None)


def write_code(file: str | None, directory: str) -> None:
    """Writes a module's file, and what it imports from its own folder, into `directory`/code."""
    for path, content in _files(file).items():
        target = os.path.join(directory, "code", path)
        gfile().makedirs(os.path.dirname(target))
        with gfile().GFile(target, "wb") as opened:
            opened.write(content)


@functools.lru_cache(maxsize=8)  # the same in each checkpoint of a trial
def _files(file: str | None) -> dict[str, bytes]:
    if file is None or not os.path.isfile(file):
        return {}
    return collect(*os.path.split(os.path.abspath(file)))
