"""Where the user's function is."""

from __future__ import annotations

import dataclasses

__all__ = ["UserCode"]


@dataclasses.dataclass(frozen=True)
class UserCode:
    """All that a worker needs to find the user's function, as plain strings.

    Attributes:
        module: dotted name to import, such as "penguin_keras" or "package.module".
        function: name of the function in that module.
        bundle: path or URI of the bundle; None when the module is installed on the worker.
        digest: SHA-256 in hex over the names and contents of the bundle; None without a bundle.
    """

    module: str
    function: str = "run_fn"
    bundle: str | None = None
    digest: str | None = None
