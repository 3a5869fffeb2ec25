"""Trainer APIs: ways to write a trainer other than a `run_fn`, and the choice among them.

A module file defines `run_fn(fn_args)`, or code that an installed API turns into a `run_fn`. APIs
are found by `importlib.metadata`, so that other distributions can add their own::

    # setup.py
    entry_points={"generic_trainer.trainer_apis": ["main = my_package.trainer_api:MAIN"]}

    # my_package/trainer_api.py: a module that is cheap to import
    class _Main:
        def may_define(self, tree, names):
            return "main" in names

        def run_fn(self, module, function):
            main = getattr(module, "main", None)
            return main and (lambda fn_args: main(fn_args.train_files, fn_args.serving_model_dir))

    MAIN = _Main()

1. The requested function comes first, if the module defines it.
2. If it does not define `run_fn`, the APIs try it, in the order of their entry points' names.
3. The name of an entry point selects its API: `run_fn="package.module.main"` selects `main`.
"""

import ast
import contextlib
import importlib.metadata
from collections.abc import Callable, Collection, Iterator
from types import ModuleType
from typing import Any, Protocol

from generic_trainer import user_code
from generic_trainer.errors import ConfigurationError, ModuleFileError

GROUP = "generic_trainer.trainer_apis"
RUN_FN = "run_fn"
_NONE_INSTALLED = (
    "Other trainer APIs, such as trainer_fn and trial classes, are unknown here, because the "
    'distribution "generic-trainer" is not installed: run `pip install generic-trainer`, or '
    "`pip install -e .` in a checkout of it."
)


class TrainerApi(Protocol):
    """A way to write a trainer, which the object behind an entry point of `GROUP` implements."""

    def may_define(self, tree: ast.Module, names: Collection[str]) -> bool:
        """Whether a module without `run_fn` may be written for this API, judged by its source.

        Called before a pipeline runs; neither the module nor TensorFlow is imported.

        Args:
            tree: the syntax tree of the module.
            names: names that it assigns, defines or imports at its top level.
        """

    def run_fn(self, module: ModuleType, function: str) -> Callable[[Any], Any] | None:
        """Returns the `run_fn` that trains with an imported module; None if another API should.

        Called on the worker.

        Args:
            module: the user's.
            function: the requested name: `"run_fn"`, or that of the entry point.

        Raises:
            ModuleFileError: the module is written for this API, and wrongly.
        """


@contextlib.contextmanager
def run_fn_of(code: user_code.UserCode) -> Iterator[Callable[..., Any]]:
    """Yields the function that trains with the user's code, by the rules of this module.

    The user's modules can be imported inside this context; see `user_code.user_module`.

    Raises:
        ModuleFileError: the code cannot be read or imported; the function is missing or does not
            take one argument; or the API rejects the module.
        ConfigurationError: an API cannot be loaded.
    """
    with user_code.user_module(code) as module:
        yield _run_fn(module, code.function)


def may_define(function: str, path: str, tree: ast.Module, names: Collection[str]) -> bool:
    """Whether a module that does not define `function` may be run nevertheless.

    An argument of `user_code.bundle_module_file`.

    Raises:
        ModuleFileError: unknown, because no API is installed.
        ConfigurationError: an API cannot be loaded.
    """
    if function != RUN_FN:
        return False
    apis = list(trainer_apis())
    if not apis:
        raise _nothing_installed(user_code.explain_missing(function, path, names), path)
    return any(api.may_define(tree, names) for api in apis)


def _run_fn(module: ModuleType, function: str) -> Callable[..., Any]:
    is_missing = not hasattr(module, function)
    if function != RUN_FN or is_missing:
        apis = list(trainer_apis(None if function == RUN_FN else function))
        for api in apis:
            run_fn = api.run_fn(module, function)
            if run_fn is not None:
                return run_fn
        if is_missing and function == RUN_FN and not apis:
            names = [name for name in vars(module) if not name.startswith("__")]
            path = user_code.path_of_module(module)
            raise _nothing_installed(user_code.explain_missing(function, path, names), path)
    return user_code.checked_function(module, function, "fn_args")


def trainer_apis(name: str | None = None) -> Iterator[TrainerApi]:
    """Yields the installed APIs, or those of one name."""
    for entry_point in sorted(importlib.metadata.entry_points(group=GROUP)):
        if name in (None, entry_point.name):
            try:
                yield entry_point.load()
            except Exception as error:  # any error of another package
                raise ConfigurationError(
                    f"The trainer API {entry_point.name!r} of {entry_point.value} cannot be "
                    f"loaded ({type(error).__name__}: {error}): update or uninstall the "
                    "distribution that provides it."
                ) from error


def _nothing_installed(message: str, path: str) -> ModuleFileError:
    return ModuleFileError(f"{message} {_NONE_INSTALLED}", path=path)
