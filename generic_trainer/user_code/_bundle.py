"""Packs the user's code, on the machine where the pipeline is defined."""

from __future__ import annotations

import importlib.util
import logging
import os

from generic_trainer.errors import ModuleFileError, raise_problems
from generic_trainer.user_code._archive import digest_of, pack
from generic_trainer.user_code._code import UserCode
from generic_trainer.user_code._collect import collect
from generic_trainer.user_code._environment import OWN_PACKAGE, is_standard, lies_in_environment
from generic_trainer.user_code._nodes import Node, absolute, join, open_node, split, write_file

__all__ = ["bundle_function", "bundle_module_file"]

_LARGE_BUNDLE_BYTES = 50 * 2**20  # Above this the packing alone is felt at every compilation.

_log = logging.getLogger(__name__)


def bundle_module_file(module_file: str, destination: str) -> UserCode:
    """Packs a module file with what it imports from its own folder.

    Args:
        module_file: a `.py` file; local, in a zip (`code.zip/package/trainer.py`) or remote.
        destination: folder for the bundle, local or remote; made if it is not there.

    Returns:
        Where the bundle is. Equal contents give an equal digest and one file.

    Raises:
        ModuleFileError: the file is not there or is no module; it or a module that it imports
            cannot be read or has a syntax error; the bundle cannot be written.
    """
    path = absolute(os.fspath(module_file))
    folder, name = split(path)
    _check_module_file(path, name)
    return _bundle(folder, name.removesuffix(".py"), name.removesuffix(".py"), "run_fn", destination)


def bundle_function(dotted: str, destination: str) -> UserCode:
    """Packs the source folder of a function that is named by `package.module.function`.

    The top-level package is packed whole, with what it imports from the folder that it lies in; a
    plain module is packed like a module file. Installed packages, and those that are not on this
    machine but perhaps on the worker's, are named and not packed.

    Args:
        dotted: name of the function.
        destination: folder for the bundle, local or remote; made if it is not there.

    Raises:
        ModuleFileError: as `bundle_module_file`; or the name has no module in it.
    """
    module, _, function = dotted.rpartition(".")
    if not all(part.isidentifier() for part in dotted.split(".")) or not module:
        raise ModuleFileError(
            f'run_fn must be written "package.module.function", found {dotted!r}.'
        )
    top = module.partition(".")[0]
    if top == "__main__":
        raise ModuleFileError(
            f"{dotted!r} lies in the main script or notebook, which a worker cannot import: write "
            "the function into a file of its own and pass module_file."
        )
    folder = _source_folder(top)
    if folder is None:
        return UserCode(module, function)
    return _bundle(folder, top, module, function, destination)


def _check_module_file(path: str, name: str) -> None:
    subject = f"Module file {path}"
    stem = name.removesuffix(".py")
    try:
        node = open_node(path)
        is_file, is_folder = node.is_file(), node.is_dir()
    except OSError as error:
        raise ModuleFileError(f"{subject} cannot be read: {error}") from error
    problems = []
    if not is_file:
        found = "is a folder" if is_folder else "does not exist"
        problems.append(f"it {found}; expected a Python file.")
    elif stem == name:
        problems.append('expected a name that ends in ".py".')
    elif "." in stem:
        problems.append(f'a module name has no dots; rename it to {stem.replace(".", "_")}.py.')
    elif stem == "__init__":
        problems.append('this is a package; pass run_fn="package.function" instead of module_file.')
    elif is_standard(stem):
        problems.append(f"{stem!r} is a module of Python's standard library; rename the file.")
    raise_problems(ModuleFileError, subject, problems)


def _source_folder(top: str) -> str | None:
    """Returns the folder in which the user's own module or package `top` lies."""
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # A module that some code has made by hand.
        return None
    if spec is None or top == OWN_PACKAGE or is_standard(top):
        return None
    places = list(spec.submodule_search_locations or [spec.origin or ""])
    own = [place for place in places if place and not lies_in_environment(place)]
    return split(absolute(own[0]))[0] if own else None


def _bundle(folder: str, root: str, module: str, function: str, destination: str) -> UserCode:
    try:
        files = _read(folder, collect(folder, open_node(folder), root))
        digest = digest_of(files)
        bundle = join(absolute(os.fspath(destination)), f"{module}-{digest[:16]}.zip")
        write_file(bundle, pack(files, folder))
    except OSError as error:
        raise ModuleFileError(f"Cannot pack module {module!r} of {folder}: {error}") from error
    return UserCode(module, function, bundle, digest)


def _read(folder: str, nodes: dict[str, Node]) -> dict[str, bytes]:
    files, problems = {}, []
    for name, node in nodes.items():
        try:
            files[name] = node.read_bytes()
        except OSError as error:
            problems.append(f"{join(folder, name)} cannot be read: {error}")
    raise_problems(ModuleFileError, f"Cannot pack {folder}", problems)
    _warn_if_large(folder, files)
    return files


def _warn_if_large(folder: str, files: dict[str, bytes]) -> None:
    total = sum(map(len, files.values()))
    if total > _LARGE_BUNDLE_BYTES:
        largest = max(files, key=lambda name: len(files[name]))
        _log.warning(
            "The user code of %s has %d MB; it is packed, hashed and sent to each worker. The "
            "largest file is %s: data of this size is better given as an input artifact.",
            folder,
            total // 2**20,
            join(folder, largest),
        )
