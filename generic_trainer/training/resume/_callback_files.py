"""Files that callbacks have written in an earlier run, which their restored state counts on.

A `ModelCheckpoint` that has found its best model does not write it again. The earlier run may have
had another directory; its files are copied where the new run expects them.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

from generic_trainer._core.files import FAILED_SUFFIX, copy_tree, files_below, gfile


def paths_of(callback: Any) -> dict[str, str]:
    """Returns the attributes of a callback that are paths; their ends may be patterns of Keras."""
    return {
        name: value.rstrip("/")
        for name, value in vars(callback).items()
        if isinstance(value, str) and "/" in value.rstrip("/")
    }


def bring_files(callback: Any, earlier: Mapping[str, str], run_dir: str) -> None:
    """Copies files and directories of an earlier run; replaces none of this run.

    Args:
        callback: of the run that resumes.
        earlier: the result of `paths_of` in the earlier run.
        run_dir: the directory of this run. Paths elsewhere need not be the callback's to write.
    """
    for name, path in paths_of(callback).items():
        source = earlier.get(name, path)
        # Another name than before is not the place of the same files.
        is_same = source == path or os.path.basename(source) != os.path.basename(path)
        if run_dir and path.startswith(f"{run_dir.rstrip('/')}/") and not is_same:
            for entry in _found(source) or _found_aside(source):
                _copy_missing(entry, os.path.join(os.path.dirname(path), os.path.basename(entry)))


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
    names = [entry.rstrip("/") for entry in names]
    return [os.path.join(folder, entry) for entry in names if pattern.fullmatch(entry)]


def _found_aside(path: str) -> list[str]:
    """Returns the same of a run that has failed, whose directory was moved aside."""
    folder = os.path.dirname(path)
    while os.path.basename(folder):
        if gfile().isdir(folder + FAILED_SUFFIX):
            return _found(f"{folder}{FAILED_SUFFIX}{path[len(folder) :]}")
        folder = os.path.dirname(folder)
    return []


def _copy_missing(source: str, target: str) -> None:
    for name in files_below(source) if gfile().isdir(source) else [""]:
        pair = [os.path.join(root, name) if name else root for root in (source, target)]
        if not gfile().exists(pair[1]):
            copy_tree(*pair)
