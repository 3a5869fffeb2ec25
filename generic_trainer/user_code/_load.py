"""The user's module on the worker: imported anew, its functions called, and removed again."""

import contextlib
import contextvars
import importlib
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from generic_trainer._core.flags import define_again, forget_flags
from generic_trainer._core.scratch import ScratchFolder, held
from generic_trainer.errors import GenericTrainerError, ModuleFileError, TrainingError
from generic_trainer.user_code._archive import (
    Bundle,
    UserCode,
    installed_at,
    read_bundle,
    top_level,
)
from generic_trainer.user_code._errors import explain_missing, quote_error, quote_function
from generic_trainer.user_code._loader import UNPACKED_PREFIX, BundleLoader, importable

# sys.path and sys.modules belong to the process, so one user module is open at a time.
_process_lock = threading.RLock()
# Top-level names of the modules of each user module that is open; the same thread may nest them.
_open: list[set[str]] = []
_importing: contextvars.ContextVar[bool] = contextvars.ContextVar("importing", default=False)
_COUNTS = {1: "one argument", 2: "two arguments"}

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def user_module(code: UserCode) -> Iterator[ModuleType]:
    """Unpacks and imports the user's code, and yields the module.

    Within the context the bundle's modules can be imported, also by child processes. On exit
    `sys.path`, `sys.modules` and `PYTHONPATH` are restored and the unpacked files are deleted.
    A second thread waits for the first.

    Raises:
        ModuleFileError: the bundle cannot be read; importing the module failed.
    """
    with contextlib.ExitStack() as stack:
        waiting = "Module %r waits for the user code of another thread to end."
        stack.enter_context(held(_process_lock, lambda: _logger.info(waiting, code.module)))
        names = {top_level(code.module)}
        if code.bundle is not None:
            names |= stack.enter_context(_unpacked(code, read_bundle(code)))
        _open.append(names)
        stack.callback(_open.pop)
        yield _import(code)


@contextlib.contextmanager
def user_function(code: UserCode) -> Iterator[Callable[..., Any]]:
    """Yields the function that `code` names, checked, out of `user_module`.

    Raises:
        ModuleFileError: see `user_module`; the function is missing or does not take one argument.
    """
    with user_module(code) as module:
        yield checked_function(module, code.function, "fn_args")


def loaded_modules() -> list[ModuleType]:
    """Returns the imported modules of the user's code; empty outside of `user_module`."""
    return [module for names in list(_open) for module in _named(names).values()]


@contextlib.contextmanager
def _unpacked(code: UserCode, bundle: Bundle) -> Iterator[set[str]]:
    modules = {name for name in bundle.modules if _is_taken(name, code)}
    # Resolved, because importlib compares paths as text.
    with ScratchFolder(UNPACKED_PREFIX) as path:
        folder = Path(path).resolve()
        try:
            bundle.unpack(folder, modules)
            for name in modules:
                _make_regular(name, folder)
        except (OSError, ValueError) as error:
            raise ModuleFileError(
                f"The bundle of module {code.module!r}, {code.bundle}, cannot be unpacked into "
                f"{folder}: {error}. Its names must be those of files, and the disk must have room "
                "(TMPDIR names another one).",
                path=code.bundle,
            ) from error
        with importable(folder, bundle.origin), _fresh_modules(modules, folder):
            yield modules


def _make_regular(name: str, folder: Path) -> None:
    """Adds an `__init__.py` to a folder where Python would prefer a package or module elsewhere."""
    spec = PathFinder.find_spec(name)
    if spec is not None and spec.origin is not None and (folder / name).is_dir():
        (folder / name / "__init__.py").touch()


def _is_taken(name: str, code: UserCode) -> bool:
    installed = installed_at(name)
    if installed is None or name == top_level(code.module):
        return True
    _logger.warning(
        "Module %r beside %r gives way to the installed one (%s); rename it to use yours.",
        name,
        code.module,
        installed,
    )
    return False


def is_importing() -> bool:
    """Whether the user's module is being imported, rather than one of its functions called."""
    return _importing.get()


def _import(code: UserCode) -> ModuleType:
    token = _importing.set(True)
    try:
        return importlib.import_module(code.module)
    except (Exception, SystemExit) as error:
        raise ModuleFileError(
            f"Importing module {code.module!r} failed.\n{quote_error(error, code)}",
            missing_module=error.name if isinstance(error, ModuleNotFoundError) else None,
        ) from error
    finally:
        _importing.reset(token)


@contextlib.contextmanager
def _fresh_modules(names: Collection[str], folder: Path) -> Iterator[None]:
    """Hides the loaded top-level modules `names`, so that they are imported again.

    On exit these modules are restored, and modules from `folder` are removed; so are their flags of
    absl.
    """
    displaced = _named(names)
    for name in displaced:
        sys.modules.pop(name, None)
    flags = forget_flags(displaced)
    try:
        yield
    finally:
        # User code may add a folder of the bundle to sys.path and import by other names.
        start = f"{folder}{os.sep}"
        unpacked = [
            name
            for name, module in sys.modules.copy().items()  # as `_named` does
            if top_level(name) in names or _file(module).startswith(start)
        ]
        for name in unpacked:
            sys.modules.pop(name, None)
        forget_flags(unpacked)
        sys.modules.update(displaced)
        define_again(flags)


def _named(names: Collection[str]) -> dict[str, ModuleType]:
    # A copy, because other threads may import meanwhile. `list(….items())` makes tuples, during
    # which garbage collection may let those threads run.
    loaded = sys.modules.copy()
    return {name: module for name, module in loaded.items() if top_level(name) in names}


def _file(module: ModuleType) -> str:
    # Plain attribute access would load lazy modules.
    try:
        variables = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return ""
    return str(variables.get("__file__") or "")


def call_user_function(function: Callable[..., Any], fn_args: Any, code: UserCode) -> Any:
    """Returns `function(fn_args)`.

    1. An exception becomes the cause of a `TrainingError` that quotes the user's line.
    2. So does `sys.exit` with any status, because it may leave no complete model.
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
        files = {path_of_module(module) for module in loaded_modules()}
        raise TrainingError(
            f"{name} of module {code.module!r} failed.\n{quote_error(error, code, files)}"
        ) from error


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
        names = [attribute for attribute in vars(module) if not attribute.startswith("__")]
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
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    if isinstance(loader, BundleLoader):
        return loader.user_path
    return getattr(module, "__file__", None) or f"Module {module.__name__!r}"


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
