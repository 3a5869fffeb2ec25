"""Functions of the user's module: checks before a call, errors after it."""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from generic_trainer.errors import GenericTrainerError, ModuleFileError, TrainingError
from generic_trainer.user_code._archive import UserCode
from generic_trainer.user_code._errors import explain_missing, quote_error, quote_function
from generic_trainer.user_code._loader import BundleLoader

_COUNTS = {1: "one argument", 2: "two arguments"}


def call_user_function(function: Callable[..., Any], fn_args: Any, code: UserCode) -> Any:
    """Returns `function(fn_args)`.

    1. An exception becomes the cause of a `TrainingError` that quotes the user's line.
    2. So does `sys.exit` with any status, because it leaves no trained model.
    3. Errors of this package, which state a remedy already, and `KeyboardInterrupt` pass.

    Args:
        function: the function from `user_function`. Its attribute `user_function`, if there is one,
            is the name of the user's function that it calls.
        fn_args: its one argument.
        code: the code of the function, to distinguish its frames from those of libraries.

    Raises:
        TrainingError: the function raised.
    """
    try:
        return function(fn_args)
    except GenericTrainerError:
        raise
    except (Exception, SystemExit) as error:
        name = getattr(function, "user_function", code.function)
        message = f"{name} of module {code.module!r} failed.\n{quote_error(error, code)}"
        raise TrainingError(message) from error


def checked_function(module: ModuleType, name: str, *arguments: str) -> Callable[..., Any]:
    """Returns a function of a module.

    Args:
        module: the user's module.
        name: the name of the function.
        *arguments: the names of its arguments, one or two.

    Raises:
        ModuleFileError: it is missing, cannot be called with these arguments, or a call would not
            run it.
    """
    if not hasattr(module, name):  # the module may define __getattr__
        path = path_of_module(module)
        names = [each for each in vars(module) if not each.startswith("__")]
        raise ModuleFileError(explain_missing(name, path, names), path=path)
    function = getattr(module, name)
    fault = _fault(function, name, len(arguments))
    if fault:
        where = quote_function(function) if callable(function) else ""
        raise ModuleFileError(
            f"Module {module.__name__!r}: expected a function that takes "
            f"{_COUNTS[len(arguments)]}, {name}({', '.join(arguments)}); found {fault}.{where}",
            path=path_of_module(module),
        )
    return function  # type: ignore[no-any-return]


def path_of_module(module: ModuleType) -> str:
    """Returns the user's own file of a module, for messages."""
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
