"""What to say about a module without the function."""

from __future__ import annotations

import difflib
from collections.abc import Collection

__all__ = ["explain_missing"]


def explain_missing(function: str, path: str, names: Collection[str]) -> str:
    """Returns the message for a module at `path` that defines `names` and not `function`."""
    near = difflib.get_close_matches(function, names, n=1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    return (
        f"{path} does not define {function!r}, the function that trains: expected "
        f"`def {function}(fn_args)` at the top level of the module.{meant}"
    )
