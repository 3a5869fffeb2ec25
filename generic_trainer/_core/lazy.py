"""Public names that load on first use (PEP 562), so that importing a package stays cheap."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the `__getattr__` and `__dir__` of a package whose names live in other modules.

    Args:
        package: the package's `__name__`. Other names of its `__all__` are modules in it.
        homes: module of the package, or absolute name of one elsewhere → the names that it defines,
            with spaces between them.
    """
    root = package.partition(".")[0]
    home_of = {
        name: home if home.startswith(f"{root}.") else f"{package}.{home}"
        for home, names in homes.items()
        for name in names.split()
    }

    def load(name: str) -> Any:
        if name in home_of:
            return getattr(importlib.import_module(home_of[name]), name)
        if name in sys.modules[package].__all__:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load, lambda: sorted({*home_of, *sys.modules[package].__all__})
