"""The user's code, kept with a checkpoint."""

from __future__ import annotations

import functools
import os
import sys

from generic_trainer.files import gfile
from generic_trainer.user_code._collect import collect

__all__ = ["write_code"]


def write_code(module: str, directory: str) -> None:
    """Writes a module, and what it imports from its own folder, into `directory`/code.

    A module without a file, of a notebook say, has no code to write.
    """
    for path, content in _files(getattr(sys.modules.get(module), "__file__", None)).items():
        target = os.path.join(directory, "code", path)
        gfile().makedirs(os.path.dirname(target))
        with gfile().GFile(target, "wb") as file:
            file.write(content)


@functools.lru_cache(maxsize=8)  # the same in each checkpoint of a trial
def _files(path: str | None) -> dict[str, bytes]:
    if path is None or not os.path.isfile(path):
        return {}
    return collect(*os.path.split(os.path.abspath(path)))
