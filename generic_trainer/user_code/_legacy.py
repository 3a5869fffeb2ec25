"""What to say about a module without the function."""

from __future__ import annotations

import difflib
import importlib.util
from types import ModuleType

from generic_trainer.user_code._code import UserCode

__all__ = ["explain_missing"]


def explain_missing(code: UserCode, module: ModuleType) -> str:
    """Returns the message for a module that does not define `code.function`."""
    where = f'\n  File "{_user_path(module)}"'
    if code.function == "run_fn" and callable(getattr(module, "trainer_fn", None)):
        return (
            f"Module {code.module!r} has trainer_fn and no run_fn: it was written for TFX's "
            "estimator executor. Such module files need the estimator support of this package, "
            f"which is not in this release. {_estimator_state()}Define run_fn(fn_args).{where}"
        )
    names = [name for name in vars(module) if not name.startswith("__")]
    near = difflib.get_close_matches(code.function, names, n=1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    return f"Module {code.module!r} does not define {code.function}(fn_args).{meant}{where}"


def _user_path(module: ModuleType) -> str:
    loader = module.__spec__.loader if module.__spec__ else None
    return getattr(loader, "user_path", None) or module.__file__ or module.__name__


def _estimator_state() -> str:
    if importlib.util.find_spec("tensorflow") is None:
        return ""
    import tensorflow as tf

    if hasattr(tf, "estimator"):
        return ""
    return "TensorFlow itself removed tf.estimator in 2.16. "
