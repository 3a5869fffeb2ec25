"""Whether a module has a function that can be called with one argument."""

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

__all__ = ["check_function"]


def check_function(module: ModuleType, code: UserCode) -> Callable[..., Any]:
    """Returns the function that `code` names, out of the imported `module`.

    Raises:
        ModuleFileError: it is missing, cannot be called with one argument, or a call would not run
            it.
    """
    if not hasattr(module, code.function):
        names = [name for name in vars(module) if not name.startswith("__")]
        raise ModuleFileError(explain_missing(code.function, _path(module), names))
    function = getattr(module, code.function)
    found = _fault(function, code.function)
    if found:
        raise ModuleFileError(
            f"Module {code.module!r}: expected a function that takes one argument, "
            f"{code.function}(fn_args); found {found}.{_place(function)}"
        )
    return function  # type: ignore[no-any-return]


def _path(module: ModuleType) -> str:
    loader = module.__spec__.loader if module.__spec__ else None
    if isinstance(loader, BundleLoader):
        return loader.user_path
    return module.__file__ or f"Module {module.__name__!r}"


def _fault(function: Any, name: str) -> str:
    if not callable(function):
        return f"{name} = {function!r}"
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        return f"{name} as an async function or a generator, which a plain call does not run"
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return f"{name}{inspect.signature(function)}"
    except ValueError:  # functions written in C may not tell
        return ""
    return ""


def _place(function: Any) -> str:
    return quote_function(function) if callable(function) else ""
