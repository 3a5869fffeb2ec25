"""Imports the user's function on the worker, fresh, and puts everything back."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from generic_trainer.errors import ModuleFileError
from generic_trainer.user_code._archive import top_level, unpack
from generic_trainer.user_code._code import UserCode
from generic_trainer.user_code._environment import installed_at
from generic_trainer.user_code._legacy import explain_missing
from generic_trainer.user_code._loader import importable
from generic_trainer.user_code._quote import quote_error, quote_function

__all__ = ["user_function"]

_log = logging.getLogger(__name__)

# sys.path and sys.modules belong to the process, so one user module is open at a time.
_process_lock = threading.RLock()


@contextlib.contextmanager
def user_function(code: UserCode) -> Iterator[Callable[..., Any]]:
    """Unpacks and imports the user's code, and yields the function, checked.

    While it is open the bundle's modules can be imported, also by child processes. On exit
    `sys.path`, `sys.modules` and `PYTHONPATH` are what they were and the unpacked files are gone.
    A second thread waits until the first has left.

    Raises:
        ModuleFileError: the bundle cannot be read; importing the module failed; the function is
            missing or does not take one argument.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_process_lock)
        if code.bundle is not None:
            stack.enter_context(_bundle(code))
        yield _checked(_function(code, _import(code)), code)


@contextlib.contextmanager
def _bundle(code: UserCode) -> Iterator[None]:
    # Resolved, because importlib compares paths as text.
    folder = Path(tempfile.mkdtemp(prefix="generic_trainer_")).resolve()
    try:
        origin = unpack(code, folder, lambda name: _takes(name, code))
        names = {top_level(entry.name) for entry in folder.iterdir()}
        with importable(folder, origin), _fresh_modules(names):
            yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _takes(name: str, code: UserCode) -> bool:
    if name == top_level(code.module):
        return True
    place = installed_at(name)
    if place is not None:
        _log.warning(
            "Module %r beside %r gives way to the installed one (%s); rename it to use yours.",
            name,
            code.module,
            place,
        )
    return place is None


@contextlib.contextmanager
def _fresh_modules(names: set[str]) -> Iterator[None]:
    displaced = _pop_modules(names)
    try:
        yield
    finally:
        _pop_modules(names)
        sys.modules.update(displaced)


def _pop_modules(names: set[str]) -> dict[str, ModuleType]:
    owned = [name for name in sys.modules if name.partition(".")[0] in names]
    return {name: sys.modules.pop(name) for name in owned}


def _import(code: UserCode) -> ModuleType:
    try:
        return importlib.import_module(code.module)
    except (Exception, SystemExit) as error:
        raise ModuleFileError(
            f"Importing module {code.module!r} failed.\n{quote_error(error, code)}{_hint(error, code)}"
        ) from error


def _hint(error: BaseException, code: UserCode) -> str:
    if isinstance(error, ModuleNotFoundError):
        return (
            f"\nIf {error.name!r} is a package, install it where the trainer runs. If it lies "
            "beside the module file, import it by its constant name, so that it is packed."
        )
    if isinstance(error, ImportError) and "relative import" in str(error):
        return (
            "\nA module file is imported by its own name, outside of any package: write "
            '"import helper" instead of "from . import helper", or pass '
            'run_fn="package.module.run_fn" instead of module_file.'
        )
    place = installed_at(code.module.partition(".")[0])
    if isinstance(error, (ImportError, AttributeError)) and code.bundle and place:
        return f"\nThe module hides an installed one of the same name ({place}); rename it."
    return ""


def _function(code: UserCode, module: ModuleType) -> Any:
    function = getattr(module, code.function, None)
    if function is None:
        raise ModuleFileError(explain_missing(code, module))
    return function


def _checked(function: Any, code: UserCode) -> Callable[..., Any]:
    expected = f"expected a function that takes one argument, {code.function}(fn_args); found "
    if not callable(function):
        found = f"{code.function} = {function!r}"
    elif inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        found = "an async function or generator, whose body a plain call does not run"
    elif not _takes_one_argument(function):
        found = f"{code.function}{inspect.signature(function)}"
    else:
        return function
    raise ModuleFileError(
        f"Module {code.module!r}: {expected}{found}.{quote_function(function)}"
    )


def _takes_one_argument(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # Functions written in C may not tell.
        return True
    return True
