"""The folder of the user's code: the files of it that a cluster needs, and the script to run."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from generic_trainer.errors import ConfigurationError
from generic_trainer.trials.errors import InvalidExperimentException

__all__ = ["MAX_BASE64_BYTES", "command_in", "existing_context_dir", "pack", "read_context_dir"]

# 128 MiB of message hold 6 bits in every 8, less 1 MiB for the rest: 95 MiB, of base64.
MAX_BASE64_BYTES = (128 * 2**20 // 8 * 6) - 2**20
_ALWAYS_IGNORED = ("__pycache__/", "*.py[co]")
_IGNORE_FILE = ".detignore"


def existing_context_dir(context_dir: str) -> Path:
    """Returns the folder with the user's code.

    Raises:
        InvalidExperimentException: it is empty or no folder.
    """
    if context_dir == "":
        raise InvalidExperimentException(
            "Cannot specify the context directory to be empty: pass context_dir, the folder with "
            "your code, which is sent to the cluster."
        )
    folder = Path(context_dir).resolve()
    if not folder.is_dir():
        raise InvalidExperimentException(f"context_dir must be a folder, but got {folder}")
    return folder


def command_in(context_dir: Path, command: Sequence[str] | None) -> list[str]:
    """Returns the script, relative to the folder, and its arguments.

    Args:
        context_dir: the folder.
        command: what the user says; by default the script that runs now.

    Raises:
        InvalidExperimentException: this is a notebook, or the script is not in the folder.
    """
    if command is None:
        if _in_notebook():
            raise InvalidExperimentException(
                "Must specify the location of the script relative to the context directory when "
                'in IPython or a notebook: pass command=["train.py"].'
            )
        command = [os.path.abspath(sys.argv[0]), *sys.argv[1:]]
    if not command:
        raise InvalidExperimentException("command must name a script, but got an empty list")
    script = context_dir / command[0]  # an absolute path stays what it is
    script = script.parent.resolve() / script.name
    if not (script.is_file() and script.is_relative_to(context_dir)):
        raise InvalidExperimentException(
            f"The script {command[0]} is not in the context directory {context_dir}, which is all "
            'that is sent to the cluster. Pass its context_dir, or command=["train.py"].'
        )
    return [script.relative_to(context_dir).as_posix(), *command[1:]]


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
    files = []
    size = 0
    for path in _walk(context_dir, _ignored(context_dir)):
        files.append(path)
        size += -(-path.stat().st_size // 3) * 4
        if size > MAX_BASE64_BYTES:
            raise ValueError(
                f"Directory '{context_dir}' exceeds the maximum allowed size of "
                f"{MAX_BASE64_BYTES // 2**20} MiB in base64. Name what the model does not need in "
                f"{context_dir / _IGNORE_FILE}, in the syntax of .gitignore."
            )
    return files


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
        raise ConfigurationError(
            "Packing a context directory needs pathspec, which is not installed: run "
            '`pip install "generic-trainer[ray]"`.'
        ) from error
    file = folder / _IGNORE_FILE
    own = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return GitIgnoreSpec.from_lines([*_ALWAYS_IGNORED, *own]).match_file


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None
