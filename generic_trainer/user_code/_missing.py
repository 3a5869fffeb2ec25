"""What to say about a module without the function."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Collection

__all__ = ["explain_missing"]


def explain_missing(function: str, path: str, names: Collection[str]) -> str:
    """Returns the message for a module at `path` that defines `names` and not `function`."""
    if function == "run_fn" and "trainer_fn" in names:
        return (
            f"{path} defines trainer_fn and no run_fn: it was written for TFX's estimator "
            "executor. Such module files need the estimator support of this package, which is not "
            f"in this release. {_estimator_state()}Define run_fn(fn_args)."
        )
    near = difflib.get_close_matches(function, names, n=1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    return (
        f"{path} does not define {function!r}, the function that trains: expected "
        f"`def {function}(fn_args)` at the top level of the module.{meant}"
    )


def _estimator_state() -> str:
    if importlib.util.find_spec("tensorflow") is None:
        return ""
    import tensorflow as tf

    if hasattr(tf, "estimator"):
        return ""
    return "TensorFlow itself has no tf.estimator since 2.16. "
