"""Keeps the modules of one bundle apart from whatever else the process has imported."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from types import ModuleType

from generic_trainer.user_code._archive import top_level

__all__ = ["fresh_modules"]


@contextlib.contextmanager
def fresh_modules(names: Collection[str], folder: Path) -> Iterator[None]:
    """Has the top-level modules `names` imported anew, and removes on exit what came from `folder`.

    On exit `sys.modules` has again what was there under these names.
    """
    displaced = _pop(_named(names))
    try:
        yield
    finally:
        # User code may extend sys.path by a folder of its own and import by other names.
        _pop([*_named(names), *_from(folder)])
        sys.modules.update(displaced)


def _named(names: Collection[str]) -> list[str]:
    return [name for name in sys.modules if top_level(name) in names]


def _from(folder: Path) -> list[str]:
    start = f"{folder}{os.sep}"
    return [name for name, module in sys.modules.items() if _file(module).startswith(start)]


def _file(module: ModuleType) -> str:
    # Asking the module itself would make lazy ones load.
    try:
        variables = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return ""
    return str(variables.get("__file__") or "")


def _pop(names: Iterable[str]) -> dict[str, ModuleType]:
    return {name: sys.modules.pop(name) for name in set(names)}
