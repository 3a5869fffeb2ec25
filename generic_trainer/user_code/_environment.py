"""What belongs to the Python environment rather than to the user's folder."""

from __future__ import annotations

import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path

__all__ = ["OWN_PACKAGE", "STANDARD_NAMES", "installed_at", "lies_in_environment"]

# Two copies of this package in one process would not recognise each other's classes, so a checkout
# of it that lies beside a module file is never packed.
OWN_PACKAGE = __name__.partition(".")[0]

# Top-level names that mean the standard library, or the running script, whoever imports them.
STANDARD_NAMES = sys.stdlib_module_names | {"__main__"}


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
    if name in STANDARD_NAMES:
        return "the standard library"
    spec = PathFinder.find_spec(name, [path for path in sys.path if lies_in_environment(path)])
    return spec.origin if spec else None
