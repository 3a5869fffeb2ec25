"""The few operations on files that must work on every file system that TensorFlow knows."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["gfile", "is_remote", "move_aside", "publish_tree"]

# What makes a directory a model; on a file system without a directory rename it goes last.
_SAVED_MODEL_FILE = "saved_model.pb"


def is_remote(path: str) -> bool:
    """Whether a path has a scheme, such as `gs://bucket/file`."""
    return "://" in path


def publish_tree(source: str, target: str) -> None:
    """Moves a directory so that its readers see either nothing or all of it.

    1. On a local file system this is one `rename(2)`; both must be on the same file system.
    2. An object store has no rename of directories: the files go one by one, `saved_model.pb` last.
    3. What an earlier attempt left at `target` is replaced.
    """
    files = gfile()
    if files.exists(target):
        files.rmtree(target)
    if not is_remote(target):
        os.rename(source, target)
        return
    paths = [
        os.path.join(directory, name)
        for directory, _, names in files.walk(source)
        for name in names
    ]
    for path in sorted(paths, key=lambda path: os.path.basename(path) == _SAVED_MODEL_FILE):
        destination = os.path.join(target, os.path.relpath(path, source))
        files.makedirs(os.path.dirname(destination))
        files.rename(path, destination, overwrite=True)
    files.rmtree(source)


def move_aside(directory: str, target: str) -> None:
    """Moves the content of a directory to `target` and leaves the directory empty."""
    files = gfile()
    files.makedirs(target)
    for name in files.listdir(directory):
        name = name.rstrip("/")  # object stores list directories with a slash
        files.rename(os.path.join(directory, name), os.path.join(target, name), overwrite=True)


def gfile() -> Any:
    """Returns `tf.io.gfile`; TensorFlow is imported only now, because that takes seconds."""
    import tensorflow as tf

    return tf.io.gfile
