"""Imports `tensorflow_estimator` 2.15, the last release, beside a TensorFlow that has moved on.

Its modules are read as they are installed but for three import lines, which ask for what
TensorFlow no longer has; `_stand_ins` says what they get instead. Its top-level `__init__` is taken
for empty, because it imports the TPU estimator, which is past help. Nothing in TensorFlow is
changed, and line numbers in tracebacks are those of the installed files.

What stays behind in the process is one entry in `sys.meta_path`, which answers for
`tensorflow_estimator` and nothing else.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from generic_trainer.errors import ConfigurationError

__all__ = ["find_package", "prepare"]

_PACKAGE = "tensorflow_estimator"

_STAND_INS = b"from generic_trainer.estimator._stand_ins import "
_REPLACED = {
    b"import tensorflow as tf": _STAND_INS + b"tf",
    b"from tensorflow.python.distribute import estimator_training": (
        _STAND_INS + b"estimator_training"
    ),
    b"from tensorflow_estimator.python.estimator.estimator_export import estimator_export": (
        _STAND_INS + b"estimator_export"
    ),
}
_lock = threading.Lock()


def prepare() -> None:
    """Makes the modules of `tensorflow_estimator` importable, from any thread, any number of times.

    Raises:
        ConfigurationError: the package is not installed.
    """
    find_package()
    with _lock:
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder())


def find_package() -> str:
    """Returns the folder in which `tensorflow_estimator` is installed.

    Raises:
        ConfigurationError: it is not installed.
    """
    spec = PathFinder.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            "generic_trainer.estimator needs the package tensorflow-estimator, which is not "
            'installed: run `pip install "tensorflow-estimator==2.15.*"`.'
        )
    return spec.submodule_search_locations[0]


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != _PACKAGE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin)
        return spec


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        # Not through the bytecode cache: other Python processes may share it.
        source = b"" if fullname == _PACKAGE else self.get_data(self.path)
        for line, replacement in _REPLACED.items():
            source = source.replace(line, replacement)
        code: CodeType = self.source_to_code(source, self.path)
        return code
