"""Imports the user's function on the worker, fresh, and puts everything back."""

from __future__ import annotations

import contextlib
import importlib
import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from generic_trainer._core.locks import held
from generic_trainer.errors import ModuleFileError
from generic_trainer.user_code._archive import Bundle, read_bundle, top_level
from generic_trainer.user_code._check import check_function
from generic_trainer.user_code._code import UserCode
from generic_trainer.user_code._environment import installed_at
from generic_trainer.user_code._hints import hint
from generic_trainer.user_code._loader import UNPACKED_PREFIX, importable
from generic_trainer.user_code._modules import fresh_modules
from generic_trainer.user_code._quote import quote_error

__all__ = ["user_function"]

_logger = logging.getLogger(__name__)

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
        stack.enter_context(held(_process_lock, lambda: _tell_of_waiting(code)))
        if code.bundle is not None:
            stack.enter_context(_unpacked(code, read_bundle(code)))
        yield check_function(_import(code), code)


def _tell_of_waiting(code: UserCode) -> None:
    _logger.info("Module %r waits for the user code of another thread to end.", code.module)


@contextlib.contextmanager
def _unpacked(code: UserCode, bundle: Bundle) -> Iterator[None]:
    modules = {name for name in bundle.modules if _is_taken(name, code)}
    # Resolved, because importlib compares paths as text.
    folder = Path(tempfile.mkdtemp(prefix=UNPACKED_PREFIX)).resolve()
    try:
        bundle.unpack(folder, modules)
        with importable(folder, bundle.origin), fresh_modules(modules, folder):
            yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_taken(name: str, code: UserCode) -> bool:
    place = installed_at(name)
    if place is None or name == top_level(code.module):
        return True
    _logger.warning(
        "Module %r beside %r gives way to the installed one (%s); rename it to use yours.",
        name,
        code.module,
        place,
    )
    return False


def _import(code: UserCode) -> ModuleType:
    try:
        return importlib.import_module(code.module)
    except (Exception, SystemExit) as error:
        quoted = quote_error(error, code) + hint(error, code)
        raise ModuleFileError(f"Importing module {code.module!r} failed.\n{quoted}") from error
