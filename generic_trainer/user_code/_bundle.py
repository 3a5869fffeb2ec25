"""Packs the user's code, on the machine where the pipeline is defined."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os

from generic_trainer.errors import ModuleFileError
from generic_trainer.user_code._archive import Bundle
from generic_trainer.user_code._code import UserCode
from generic_trainer.user_code._collect import collect
from generic_trainer.user_code._definitions import check_definition
from generic_trainer.user_code._environment import OWN_PACKAGE, STANDARD_NAMES, lies_in_environment
from generic_trainer.user_code._module_file import check_module_file
from generic_trainer.user_code._nodes import write_file
from generic_trainer.user_code._paths import absolute, join, split

__all__ = ["bundle_function", "bundle_module_file"]

_LARGE_BUNDLE_BYTES = 50 * 2**20  # packing and hashing it is felt whenever a pipeline is compiled

_logger = logging.getLogger(__name__)


def bundle_module_file(module_file: str, destination: str) -> UserCode:
    """Packs a module file with what it imports from its own folder.

    Args:
        module_file: a `.py` file; local, in a zip (`code.zip/package/trainer.py`) or remote.
        destination: folder for the bundle, local or remote; made if it is not there.

    Returns:
        Where the bundle is. Equal contents give an equal digest and one file.

    Raises:
        ModuleFileError: the file is not there or is no module; it cannot define `run_fn`; it or a
            module that it imports cannot be read or has a syntax error; the bundle cannot be
            written.
    """
    path = absolute(os.fspath(module_file))
    check_module_file(path)
    return _pack(path, split(path)[1].removesuffix(".py"), "run_fn", destination)


def bundle_function(dotted: str, destination: str) -> UserCode:
    """Packs the source folder of a function that is named by `package.module.function`.

    The top-level package is packed whole, with what it imports from the folder that it lies in; a
    plain module is packed like a module file. Installed packages, and those that are not on this
    machine but perhaps on the worker's, are named and not packed.

    Args:
        dotted: name of the function.
        destination: folder for the bundle, local or remote; made if it is not there.

    Raises:
        ModuleFileError: the name has no module in it; its module cannot define the function;
            files cannot be read; the bundle cannot be written.
    """
    module, _, function = dotted.rpartition(".")
    if not module or not all(part.isidentifier() for part in dotted.split(".")):
        raise ModuleFileError(
            f'run_fn must be written "package.module.function", found {dotted!r}.'
        )
    top = module.partition(".")[0]
    if top == "__main__":
        raise ModuleFileError(
            f"{dotted!r} lies in the main script or notebook, which a worker cannot import: write "
            "the function into a file of its own and pass module_file."
        )
    source = _own_source(top)
    if source is None:
        return UserCode(module, function)
    return _pack(source, module, function, destination)


def _own_source(top: str) -> str | None:
    """Returns the path of the user's own module or package `top`; None if it is installed."""
    importlib.invalidate_caches()  # a notebook may have written it a moment ago
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module that some code has made by hand
        return None
    if spec is None:
        _logger.warning("%r is not on this machine: the trainer will look for it at run time.", top)
        return None
    if top in STANDARD_NAMES | {OWN_PACKAGE}:
        return None
    # A namespace package may lie in several folders; the first of the user's is taken.
    for place in spec.submodule_search_locations or [spec.origin or ""]:
        if place and not lies_in_environment(place):
            return absolute(place)
    return None


def _pack(source: str, module: str, function: str, destination: str) -> UserCode:
    folder, root = split(source)
    try:
        bundle = Bundle(collect(folder, root), folder)
        check_definition(bundle, module, function)
        digest = bundle.digest()
        path = join(absolute(os.fspath(destination)), f"{module}-{digest[:16]}.zip")
        write_file(path, bundle.to_zip())
    except OSError as error:
        raise ModuleFileError(f"Cannot pack {source} into {destination}: {error}") from error
    _warn_if_large(bundle)
    return UserCode(module, function, path, digest)


def _warn_if_large(bundle: Bundle) -> None:
    sizes = {path: len(content) for path, content in bundle.files.items()}
    if sum(sizes.values()) > _LARGE_BUNDLE_BYTES:
        _logger.warning(
            "The user code of %s has %d MiB, which each worker fetches. Its largest file is %s: "
            "data of this size is better given to the trainer as an input artifact.",
            bundle.origin,
            sum(sizes.values()) // 2**20,
            max(sizes, key=lambda path: sizes[path]),
        )
