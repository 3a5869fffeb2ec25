"""Files that the user's code has written in an earlier run, which its restored state counts on.

A `ModelCheckpoint` that has found its best model does not write it again, and an average of
snapshots needs those of all epochs. The earlier run may have had another directory. Which paths a
callback makes of it cannot be known, so all files are copied that are not our own.
"""

import logging
import os
import re
from typing import Any

import tensorflow as tf

from generic_trainer._core.files import FAILED_SUFFIX, copy_tree, files_below, gfile, is_remote

_OURS = re.compile(
    r"(\..*|progress-[^/]*\.jsonl|training\.log|live\.html|report\.(html|json)|run\.json)"
)

_logger = logging.getLogger(__name__)

# Path of a file of this run that an earlier fit of this process has brought → size and time of it,
# and the path, size and time of what it is a copy of.
_brought: dict[str, tuple[tuple[int, int], tuple[str, int, int]]] = {}


def bring_files(earlier: str, run_dir: str) -> None:
    """Copies files of an earlier run; replaces none that this run has written.

    Of two fits, the first may have ended long ago: the file that it brings is the older one.

    Args:
        earlier: the directory of the earlier run; empty if it had none.
        run_dir: the directory of this run, or empty.
    """
    if not earlier or not run_dir or os.path.normpath(earlier) == os.path.normpath(run_dir):
        return
    source = earlier if gfile().isdir(earlier) else _aside(earlier)
    for name in files_below(source) if source else ():
        file, target = (os.path.join(root, name) for root in (source, run_dir))
        if _OURS.fullmatch(name) or not _is_plain_file(file, source):
            continue
        try:
            given = file, *_size_and_time(file)
            if gfile().exists(target):
                brought, copied = _brought.get(target, (None, None))
                if copied == given or brought != _size_and_time(target):
                    continue
            copy_tree(file, target)
            _brought[target] = _size_and_time(target), given
        except (OSError, tf.errors.OpError) as error:  # one that the fit needs will be missed
            _logger.warning("%s of the earlier run could not be copied: %s", file, error)


def _size_and_time(path: str) -> tuple[int, int]:
    found = gfile().stat(path)
    return found.length, found.mtime_nsec


def _is_plain_file(file: str, root: str) -> bool:
    """Returns whether a file is no link or pipe, and below no link to a directory."""
    if is_remote(file):
        return True
    below = os.path.relpath(file, root)
    is_link = os.path.realpath(file) != os.path.join(os.path.realpath(root), below)
    return os.path.isfile(file) and not is_link


def lacks_best(callback: Any) -> bool:
    """Returns whether a callback keeps the best model only, and there is none."""
    path = getattr(callback, "filepath", None)
    return bool(getattr(callback, "save_best_only", False) and path and not _found(path))


def _found(path: str) -> list[str]:
    """Returns the files that a callback has written to a path."""
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
