"""The import system's view of an unpacked bundle: its files, under the user's own paths."""

import contextlib
import functools
import linecache
import os
import sys
from collections.abc import Iterator
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from importlib.util import decode_source
from pathlib import Path
from typing import Any

UNPACKED_PREFIX = "generic-trainer-code-"

# The same source gives the same code object. TensorFlow never frees conversions and traced stacks,
# which it caches by code object, and a process may import a module for many runs.
_compiled: Any = functools.lru_cache(maxsize=256)(SourceFileLoader("", "").source_to_code)


class BundleLoader(SourceFileLoader):
    """Loads modules from the unpacked bundle under the paths of the user's own files.

    `__file__` is the unpacked file, beside which the data files are. The code object carries the
    path of the user's own file. Its lines are pinned in `linecache`, because AutoGraph reads them
    while training and the user may have edited the file since it was packed.

    Attributes:
        user_path: path of the user's own file.
    """

    def __init__(self, name: str, path: str, folder: Path, origin: str) -> None:
        super().__init__(name, path)
        self._folder = folder
        self._origin = origin
        self.user_path = os.path.join(origin, Path(path).relative_to(folder).as_posix())

    def as_users(self, text: str) -> str:
        """Returns `text` with the user's own folder instead of the one that is unpacked."""
        return text.replace(str(self._folder), self._origin)

    def path_stats(self, path: str) -> Any:  # type: ignore[override]
        """Declines, because bytecode of a bundle would be used only once."""
        raise OSError("no bytecode is kept for a bundle")

    def source_to_code(self, data: Any, path: Any, **options: Any) -> Any:  # type: ignore[override]
        """Compiles `data` as the user's own file."""
        compiled = _compiled(data, self.user_path, **options)
        text = decode_source(data)
        pinned = (len(text), None, text.splitlines(keepends=True), self.user_path)
        linecache.cache[self.user_path] = pinned
        return compiled


@contextlib.contextmanager
def importable(folder: Path, origin: str) -> Iterator[None]:
    """Puts `folder` first on the import path of this process and of its children.

    On exit `sys.path`, `PYTHONPATH` and `sys.path_hooks` are restored.
    """
    path = list(sys.path)
    hooks = list(sys.path_hooks)
    inherited = os.environ.get("PYTHONPATH")
    sys.path_hooks.insert(0, functools.partial(_finder, folder, origin))
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), inherited)))
    try:
        yield
    finally:
        sys.path[:] = path
        sys.path_hooks[:] = hooks
        if inherited is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = inherited
        _forget(folder, origin)


def _finder(folder: Path, origin: str, path: str) -> FileFinder:
    if not Path(path).is_relative_to(folder):
        raise ImportError(f"{path} is not in a bundle")
    source: Any = functools.partial(BundleLoader, folder=folder, origin=origin)
    return FileFinder(path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (source, SOURCE_SUFFIXES))


def _forget(folder: Path, origin: str) -> None:
    # Copies, because other threads may import or format tracebacks meanwhile.
    for path in list(sys.path_importer_cache):
        if path.startswith(str(folder)):
            sys.path_importer_cache.pop(path, None)
    # If the user's files are on another machine, later tracebacks only have the pinned lines.
    for path in list(linecache.cache):
        if path.startswith(os.path.join(origin, "")) and Path(path).exists():
            linecache.cache.pop(path, None)
