"""The few operations on files that must work on every file system that TensorFlow knows."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["is_remote", "move_aside", "publish_tree"]

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
    gfile = _gfile()
    if gfile.exists(target):
        gfile.rmtree(target)
    if not is_remote(target):
        os.rename(source, target)
        return
    paths = [
        os.path.join(directory, file)
        for directory, _, files in gfile.walk(source)
        for file in files
    ]
    for path in sorted(paths, key=lambda path: os.path.basename(path) == _SAVED_MODEL_FILE):
        destination = os.path.join(target, os.path.relpath(path, source))
        gfile.makedirs(os.path.dirname(destination))
        gfile.rename(path, destination, overwrite=True)
    gfile.rmtree(source)


def move_aside(directory: str, target: str) -> None:
    """Moves the content of a directory to `target` and leaves the directory empty."""
    gfile = _gfile()
    gfile.makedirs(target)
    for name in gfile.listdir(directory):
        name = name.rstrip("/")  # object stores list directories with a slash
        gfile.rename(os.path.join(directory, name), os.path.join(target, name), overwrite=True)


def _gfile() -> Any:
    import tensorflow as tf

    return tf.io.gfile
