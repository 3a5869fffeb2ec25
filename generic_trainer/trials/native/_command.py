"""What runs on the cluster: the script that was started here, or what the user says."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from generic_trainer.trials._errors import InvalidExperimentException

__all__ = ["command_in", "existing_context_dir"]


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


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None
