"""The files that a cluster needs: the folder of the user's code, without what it ignores."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["MAX_BASE64_BYTES", "pack", "read_context_dir"]

# 128 MiB of message hold 6 bits in every 8, less 1 MiB for the rest: 95 MiB, of base64.
MAX_BASE64_BYTES = (128 * 2**20 // 8 * 6) - 2**20
_ALWAYS_IGNORED = ("__pycache__/", "*.py[co]")
_IGNORE_FILE = ".detignore"


def read_context_dir(context_dir: Path) -> list[Path]:
    """Returns the files of a folder, in order, without what it ignores.

    1. Compiled Python is ignored, and what the folder's `.detignore` says, in gitignore syntax.
    2. The limit counts what base64 makes of the files: four bytes for three.

    Args:
        context_dir: the folder.

    Raises:
        ValueError: the files are too large.
        ConfigurationError: pathspec, which reads gitignore syntax, is not installed.
    """
    found = []
    size = 0
    for path in _walk(context_dir, _ignored(context_dir)):
        found.append(path)
        size += -(-path.stat().st_size // 3) * 4
        if size > MAX_BASE64_BYTES:
            raise ValueError(
                f"Directory '{context_dir}' exceeds the maximum allowed size of "
                f"{MAX_BASE64_BYTES // 2**20} MiB in base64. Name what the model does not need in "
                f"{context_dir / _IGNORE_FILE}, in the syntax of .gitignore."
            )
    return found


def pack(context_dir: Path, target: Path) -> None:
    """Writes the files of a folder into a zip; see `read_context_dir`."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in read_context_dir(context_dir):
            archive.write(path, path.relative_to(context_dir))


def _walk(folder: Path, ignored: Any) -> Iterator[Path]:
    root = folder
    for directory, folders, names in os.walk(folder):
        here = Path(directory)
        # A folder that is ignored cannot be looked into, as in git.
        folders[:] = sorted(
            name
            for name in folders
            if not ignored(f"{(here / name).relative_to(root).as_posix()}/")
        )
        for name in sorted(names):
            path = here / name
            if not ignored(path.relative_to(root).as_posix()) and path.is_file():
                yield path


def _ignored(folder: Path) -> Any:
    """Returns the function that tells of a relative path whether it is ignored."""
    try:
        from pathspec import GitIgnoreSpec
    except ImportError as error:
        from generic_trainer.errors import ConfigurationError

        raise ConfigurationError(
            "Packing a context directory needs pathspec, which is not installed: run "
            '`pip install "generic-trainer[ray]"`.'
        ) from error
    file = folder / _IGNORE_FILE
    own = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return GitIgnoreSpec.from_lines([*_ALWAYS_IGNORED, *own]).match_file
