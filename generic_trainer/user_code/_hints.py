"""What the user can do about an error, where the error itself does not say."""

from __future__ import annotations

from generic_trainer.user_code._archive import top_level
from generic_trainer.user_code._code import UserCode
from generic_trainer.user_code._environment import installed_at
from generic_trainer.user_code._loader import UNPACKED_PREFIX

__all__ = ["hint"]

_MISSING_FILE = ("FileNotFoundError", "NotFoundError")  # Python's and TensorFlow's
# `tf.estimator`, `tf.compat.v1.estimator` and `tf.keras.estimator` say it alike.
_NO_ESTIMATOR = "has no attribute 'estimator'"
_NO_EVAL_EXPORT = "'tensorflow_model_analysis' has no attribute 'export'"


def hint(error: BaseException, code: UserCode) -> str:
    """Returns a remedy on a line of its own, or ""."""
    advice = _advice(error, code)
    return f"\n{advice}" if advice else ""


def _advice(error: BaseException, code: UserCode) -> str:
    if isinstance(error, SystemExit):
        return "A module that ends the process trains nothing: return from the function instead."
    if (
        isinstance(error, ImportError)
        and "relative import" in str(error)
        and "." not in code.module
    ):
        return (
            "A module file is imported by its own name, outside of any package: write "
            '"import helper" instead of "from . import helper", or pass '
            'run_fn="package.module.run_fn" instead of module_file.'
        )
    if isinstance(error, AttributeError) and _NO_ESTIMATOR in str(error):
        return (
            "TensorFlow has no tf.estimator since 2.16. Write "
            '"from generic_trainer.estimator import tf" instead of "import tensorflow as tf".'
        )
    if isinstance(error, AttributeError) and _NO_EVAL_EXPORT in str(error):
        return (
            "TensorFlow Model Analysis has no EvalSavedModels any more. A module with trainer_fn "
            "needs no run_fn: take run_fn away, and the model is published without them."
        )
    name = top_level(code.module)
    place = installed_at(name) if code.bundle and f"'{name}'" in str(error) else None
    if place and isinstance(error, (AttributeError, ImportError)):
        return f"The module hides an installed one of the same name ({place}); rename it."
    if isinstance(error, ModuleNotFoundError):
        return _advice_on_missing(top_level(error.name or ""), code)
    if type(error).__name__ in _MISSING_FILE and UNPACKED_PREFIX in str(error):
        return (
            "A data file travels with the code only inside a package that the module imports: put "
            "it there and open it relative to the package's __file__, or pass it as an input."
        )
    return ""


def _advice_on_missing(name: str, code: UserCode) -> str:
    if code.bundle and name == top_level(code.module):
        return f"{name!r} was packed as it was found, and has no such module: check the spelling."
    return (
        f"If {name!r} is a package, install it where the trainer runs. If it lies beside the "
        "module file, import it by a constant name, so that it is packed."
    )
