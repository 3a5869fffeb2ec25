"""Files that the user's code has written in an earlier run, which its restored state counts on.

A `ModelCheckpoint` that has found its best model does not write it again, and an average of
snapshots needs those of all epochs. The earlier run may have had another directory. Which paths a
callback makes of it cannot be known, so all files are copied that are not our own.
"""

import os
import re
from typing import Any

from generic_trainer._core.files import FAILED_SUFFIX, copy_tree, files_below, gfile

_OURS = re.compile(
    r"(\..*|progress-[^/]*\.jsonl|training\.log|live\.html|report\.(html|json)|run\.json)"
)


def bring_files(earlier: str, run_dir: str) -> None:
    """Copies files of an earlier run; replaces none of this run.

    Args:
        earlier: the directory of the earlier run; empty if it had none.
        run_dir: the directory of this run, or empty.
    """
    if not earlier or not run_dir or os.path.normpath(earlier) == os.path.normpath(run_dir):
        return
    source = earlier if gfile().isdir(earlier) else _aside(earlier)
    for name in files_below(source) if source else ():
        target = os.path.join(run_dir, name)
        if not _OURS.fullmatch(name) and not gfile().exists(target):
            copy_tree(os.path.join(source, name), target)


def lacks_best(callback: Any) -> bool:
    """Returns whether a callback keeps the best model only, and there is none."""
    path = getattr(callback, "filepath", None)
    return bool(getattr(callback, "save_best_only", False) and path and not _found(path))


def _found(path: str) -> list[str]:
    """Returns what a callback has written to a path."""
    folder, name = os.path.split(path)
    # Keras fills in `{epoch}`, and TensorFlow adds endings to the name of a checkpoint.
    pattern = re.compile(re.sub(r"\\\{.*?\\\}", ".*", re.escape(name)) + r"(\..*)?")
    folder = folder or "."
    names = gfile().listdir(folder) if gfile().isdir(folder) else []
    return [entry for entry in names if pattern.fullmatch(entry.rstrip("/"))]


def _aside(path: str) -> str:
    """Returns where the directory of a run that has failed was moved; empty if nowhere."""
    folder = path.rstrip("/")
    while os.path.basename(folder):
        if gfile().isdir(folder + FAILED_SUFFIX):
            return f"{folder}{FAILED_SUFFIX}{path[len(folder) :]}"
        folder = os.path.dirname(folder)
    return ""
