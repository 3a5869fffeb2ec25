"""Pickles, of scikit-learn, XGBoost, joblib and PyTorch, read without importing what they name.

A pickle is a program for a machine of Python's, which calls what it imports. Here the same machine
runs with every global replaced by one that does nothing, so that what it would import is known as
exactly as if it had been loaded, names that it computes included, and the objects can be looked at.
"""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import io
import lzma
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np

from generic_trainer._core import internals
from generic_trainer.validation._formats.contents import Contents
from generic_trainer.validation._formats.imports import verdict

NAMED = re.compile(r"\.(pkl|pickle|joblib|dill)(\.(gz|z|bz2|xz|lzma))?$", re.IGNORECASE)
_PROTOCOL = re.compile(rb"\x80[\x02-\x05]")
_COMPRESSED: tuple[tuple[bytes, Callable[[bytes], bytes]], ...] = (
    (b"\x1f\x8b", gzip.decompress),
    (b"\x78", zlib.decompress),
    (b"BZh", bz2.decompress),
    (b"\xfd7zXZ", lzma.decompress),
    (b"\x5d\x00\x00", lzma.decompress),
)
_VERSION = "_sklearn_version"
_MAX_SHOWN = 4
_WHAT_ERRORS = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, OSError),
    *(
        lzma.LZMAError,
        pickle.PickleError,
        RecursionError,
        TypeError,
        ValueError,
        struct.error,
        zlib.error,
    ),
)


@dataclasses.dataclass
class Imports:
    """Globals that pickles name, by what is known of each; `module.name`, in their order."""

    allowed: Collection[str] = ()
    refused: dict[str, None] = dataclasses.field(default_factory=dict)
    unknown: dict[str, None] = dataclasses.field(default_factory=dict)

    def add(self, module: str, name: str) -> None:
        """Notes a global."""
        kinds = {"refused": self.refused, "unknown": self.unknown}
        kinds.get(verdict(module, name, self.allowed), {})[f"{module}.{name}"] = None


def is_pickle(head: bytes, file: Path) -> bool:
    """Returns whether a file is one by its content, or by its name."""
    if NAMED.search(file.name):
        return True
    if zipfile.is_zipfile(file):
        return bool(_pickled_members(file))
    if not _PROTOCOL.match(head):
        return False
    with open(file, "rb") as opened:
        opened.seek(-1, io.SEEK_END)
        if opened.read() != b".":
            return False
    try:  # a few bytes may be anything's
        read(file, ())
    except ValueError:
        return False
    return True


def read(file: Path, allowed: Collection[str]) -> Contents:
    """Reads a pickle, or all in an archive of PyTorch.

    Args:
        file: compressed or not.
        allowed: globals that the contract allows.

    Raises:
        ValueError: it is no pickle, or ends too early, and names nothing that would be refused.
    """
    imports = Imports(allowed)
    found: list[Any] = []
    try:
        for content in _contents(file):
            found.extend(_objects(content, imports))
    except _WHAT_ERRORS as error:
        # What comes before the damage is run all the same.
        if not imports.refused:
            raise ValueError(f"it is no whole pickle ({error or type(error).__name__})") from error
    top = found[0] if found else None
    return Contents(
        summary="; ".join(["a pickle", *_summary(top)]),
        feature_names=_feature_names(top),
        refused=tuple(imports.refused),
        unknown=tuple(imports.unknown),
    )


def _contents(file: Path) -> Iterator[bytes]:
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            yield from (archive.read(name) for name in _pickled_members(file))
        return
    content = file.read_bytes()
    unpack = next((f for magic, f in _COMPRESSED if content.startswith(magic)), None)
    yield content if unpack is None or content[1:2] == b"." else unpack(content)


def _pickled_members(file: Path) -> list[str]:
    try:
        with zipfile.ZipFile(file) as archive:
            return [name for name in archive.namelist() if NAMED.search(name)]
    except zipfile.BadZipFile:
        return []


def _objects(content: bytes, imports: Imports) -> Iterator[Any]:
    """Yields the objects of all pickles in a file, one behind the other."""
    stream = io.BytesIO(content)
    yield _Machine(stream, imports).load()
    while stream.tell() < len(content):
        try:
            yield _Machine(stream, imports).load()
        except _WHAT_ERRORS:
            return  # nobody reads what lies behind a pickle


class _Global:
    """What a pickle imports; a call of it makes an object that remembers the call."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name
        # The machine asks a class for it, which this stands for.
        self.__dict__["__new__"] = lambda _, *args, **named: self(*args, **named)

    def __call__(self, *args: Any, **named: Any) -> _Object:
        return _Object(self, args)


class _Object:
    """What a call of a global would return."""

    def __init__(self, made_by: Any, args: tuple[Any, ...] = ()) -> None:
        self.made_by, self.args = made_by, args
        self.state: dict[str, Any] = {}
        self.items: list[Any] = []

    def __setstate__(self, state: Any) -> None:
        self.state = state if isinstance(state, dict) else {"": state}

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def append(self, value: Any) -> None:
        """As a list's, and a set's `add`."""
        self.items.append(value)

    add = append

    def __call__(self, *args: Any, **named: Any) -> _Object:
        return _Object(self, args)

    @property
    def class_name(self) -> str:
        """The name of its class, empty where that is not told."""
        made_by = self.made_by
        if isinstance(made_by, _Global) and made_by.module in ("copyreg", "copy_reg"):
            made_by = self.args[0] if self.args else None
        return made_by.name if isinstance(made_by, _Global) else ""


class _Machine(internals.PYTHON_UNPICKLER.get()):  # type: ignore[misc]
    """Python's unpickler, which imports nothing; arrays of joblib lie between its instructions."""

    def __init__(self, stream: IO[bytes], imports: Imports) -> None:
        super().__init__(stream, encoding="latin1")
        self._stream, self._imports = stream, imports

    def find_class(self, module: Any, name: Any) -> Any:
        if not isinstance(module, str) or not isinstance(name, str):
            raise pickle.UnpicklingError("it computes the name of what it imports")
        self._imports.add(module, name)
        return _Global(module, name)

    def get_extension(self, code: int) -> None:
        raise pickle.UnpicklingError(f"it needs extension {code} of copyreg")

    def persistent_load(self, _: Any) -> Any:
        return _Object(None)

    def load_build(self) -> None:
        super().load_build()
        wrapper = self.stack[-1]
        if isinstance(wrapper, _Object) and wrapper.class_name == "NumpyArrayWrapper":
            self._pass_array(wrapper)

    def _pass_array(self, wrapper: _Object) -> None:
        """Goes on behind an array that joblib has written in place."""
        state = wrapper.state
        (kind, *_) = state["dtype"].args
        if str(kind).startswith("O"):
            wrapper.state = _Machine(self._stream, self._imports).load().state
            return
        if state.get("numpy_array_alignment_bytes") is not None:
            self._stream.read(ord(self._stream.read(1)))
        size = int(np.prod(state["shape"], dtype=np.int64)) * np.dtype(kind).itemsize
        if len(self._stream.read(size)) != size:
            raise EOFError("an array ends too early")

    dispatch: ClassVar[dict[int, Any]] = {
        **internals.PYTHON_UNPICKLER.get().dispatch,
        pickle.BUILD[0]: load_build,
    }


def _summary(top: Any) -> Iterator[str]:
    """Yields what an estimator is, and the version that it is for."""
    if not isinstance(top, _Object):
        return
    steps = [step.class_name for step in _steps(top)]
    shown = ", ".join(steps[:_MAX_SHOWN]) + (", ..." if len(steps) > _MAX_SHOWN else "")
    if top.class_name:
        yield f"{top.class_name}({shown})" if shown else top.class_name
    if isinstance(version := top.state.get(_VERSION), str):
        yield f"scikit-learn {version}"
    for first in (top, *_steps(top)[:1]):
        if isinstance(count := first.state.get("n_features_in_"), int):
            yield f"{count} features"


def _feature_names(top: Any) -> tuple[str, ...]:
    """Returns the columns that an estimator was fitted on, where it was given their names."""
    for each in (top, *_steps(top)[:1]) if isinstance(top, _Object) else ():
        names = each.state.get("feature_names_in_")
        values = names.state.get("") if isinstance(names, _Object) else None
        texts = values[-1] if isinstance(values, tuple) and values else None
        if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
            return tuple(texts)
    return ()


def _steps(top: _Object) -> list[_Object]:
    """Returns the estimators of a pipeline, none of another one."""
    steps = top.state.get("steps")
    pairs = steps if isinstance(steps, list) else []
    last = (pair[-1] for pair in pairs if isinstance(pair, tuple) and pair)
    return [estimator for estimator in last if isinstance(estimator, _Object)]
