"""What belongs to the Python environment rather than to the user's folder."""

from __future__ import annotations

import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path

__all__ = ["OWN_PACKAGE", "installed_at", "is_standard", "lies_in_environment"]

# Two copies of this package in one process would not recognise each other's classes, so a checkout
# of it that lies beside a module file is never packed.
OWN_PACKAGE = __name__.partition(".")[0]


def is_standard(name: str) -> bool:
    """Whether `name` is a top-level module of the standard library."""
    return name in sys.stdlib_module_names or name in sys.builtin_module_names


def lies_in_environment(path: str) -> bool:
    """Whether `path` lies in site-packages, dist-packages or the standard library."""
    place = Path(path)
    if {"site-packages", "dist-packages"}.intersection(place.parts):
        return True
    return any(place.is_relative_to(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib"))


def installed_at(name: str) -> str | None:
    """Returns where the environment has the top-level module `name`; None when it has not.

    Folders without `__init__.py` do not count: to Python they are nothing if a real one exists.
    """
    if is_standard(name):
        return "the standard library"
    spec = PathFinder.find_spec(name, [path for path in sys.path if lies_in_environment(path)])
    return spec.origin if spec else None
