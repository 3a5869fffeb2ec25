"""Whether a module has a function that can be called to train."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from generic_trainer.errors import ModuleFileError
from generic_trainer.user_code._code import UserCode
from generic_trainer.user_code._loader import BundleLoader
from generic_trainer.user_code._missing import explain_missing
from generic_trainer.user_code._quote import quote_function
from generic_trainer.user_code._trainer_fn import TRAINER_FN, has_trainer_fn_instead
from generic_trainer.user_code._trial_class import RUN_FN, find_trial_class

__all__ = ["check_function"]


def check_function(module: ModuleType, code: UserCode) -> Callable[..., Any]:
    """Returns the function that `code` names, out of the imported `module`.

    Where the module has `trainer_fn` or a trial class in place of `run_fn`, it is a function that
    runs that.

    Raises:
        ModuleFileError: it is missing, cannot be called with its arguments, or a call would not run
            it.
    """
    names = [name for name in vars(module) if not name.startswith("__")]
    if hasattr(module, code.function):
        names.append(code.function)  # also where a module's own __getattr__ makes it
    if has_trainer_fn_instead(code.function, names):
        from generic_trainer.estimator._trainer_fn import run_fn_from_trainer_fn

        return run_fn_from_trainer_fn(_checked(module, TRAINER_FN, "trainer_fn_args", "schema"))
    if code.function not in names:
        trial_class = find_trial_class(module) if code.function == RUN_FN else None
        if trial_class is not None:
            from generic_trainer.trials import run_fn_from_trial

            return run_fn_from_trial(trial_class)
        raise ModuleFileError(explain_missing(code.function, _path(module), names))
    return _checked(module, code.function, "fn_args")


def _checked(module: ModuleType, name: str, *arguments: str) -> Callable[..., Any]:
    function = getattr(module, name)
    found = _fault(function, name, len(arguments))
    if found:
        count = {1: "one argument", 2: "two arguments"}[len(arguments)]
        raise ModuleFileError(
            f"Module {module.__name__!r}: expected a function that takes {count}, "
            f"{name}({', '.join(arguments)}); found {found}.{_place(function)}"
        )
    return function  # type: ignore[no-any-return]


def _path(module: ModuleType) -> str:
    loader = module.__spec__.loader if module.__spec__ else None
    if isinstance(loader, BundleLoader):
        return loader.user_path
    return module.__file__ or f"Module {module.__name__!r}"


def _fault(function: Any, name: str, arguments: int) -> str:
    if not callable(function):
        return f"{name} = {function!r}"
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        return f"{name} as an async function or a generator, which a plain call does not run"
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError:
        return f"{name}{inspect.signature(function)}"
    except ValueError:  # functions written in C may not tell
        return ""
    return ""


def _place(function: Any) -> str:
    return quote_function(function) if callable(function) else ""
