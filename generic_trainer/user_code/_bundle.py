"""Bundles of the user's code, packed on the machine where the pipeline is defined."""

import ast
import importlib
import importlib.util
import logging
import os
import re
from collections.abc import Callable, Collection, Iterator

from generic_trainer._core.files import absolute
from generic_trainer.errors import ModuleFileError, raise_problems
from generic_trainer.user_code import _archive, _collect
from generic_trainer.user_code._errors import NO_EVAL_MODELS, explain_missing, quote_syntax_error

# Returns whether a module can run without defining a function: (name of the function, path of the
# module, its syntax tree, the names that it defines) → bool.
MayDefine = Callable[[str, str, ast.Module, Collection[str]], bool]

# A module that uses one of these can define names that its source does not show.
_MAKERS_OF_NAMES = frozenset({"__getattr__", "exec", "globals", "modules", "setattr", "vars"})

_logger = logging.getLogger(__name__)


def bundle_module_file(
    module_file: str, destination: str, *, may_define: MayDefine | None = None
) -> _archive.UserCode:
    """Packs a module file with what it imports from its own folder.

    Args:
        module_file: a `.py` file, local or remote.
        destination: folder for the bundle, local or remote; created if missing.
        may_define: decides from the source whether a module without `run_fn` is accepted; None
            accepts none.

    Returns:
        The code with its bundle. Equal contents give an equal digest and one file.

    Raises:
        ModuleFileError: the file is missing or is not a module; it cannot define `run_fn`; it or a
            module that it imports cannot be read or has a syntax error; the bundle cannot be
            written.
    """
    path = absolute(os.fspath(module_file))
    try:
        problems = list(_problems_of_path(_archive.open_node(path), path))
    except OSError as error:
        raise ModuleFileError(f"Module file {path} cannot be read: {error}", path=path) from error
    raise_problems(ModuleFileError, f"Module file {path}", problems, path=path)
    module = os.path.basename(path).removesuffix(".py")
    return _pack(path, module, "run_fn", destination, may_define)


def bundle_function(
    dotted: str, destination: str, *, may_define: MayDefine | None = None
) -> _archive.UserCode:
    """Packs the source folder of the function `package.module.function`.

    The top-level package is packed whole, with its imports from the folder beside it; a single
    module is packed like a module file. Installed packages, and those that this machine does not
    have but the worker may, are not packed.

    Args:
        dotted: name of the function.
        destination: folder for the bundle, local or remote; created if missing.
        may_define: see `bundle_module_file`.

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
        return _archive.UserCode(module, function)
    return _pack(source, module, function, destination, may_define)


def _problems_of_path(node: _archive.Node, path: str) -> Iterator[str]:
    """Yields the reasons why a path cannot be imported as a module."""
    name = os.path.basename(path)
    stem = name.removesuffix(".py")
    if node.is_dir():
        yield "expected a Python file, found a folder."
    elif ".zip/" in path:
        yield "expected a local or remote file, found one inside a zip: unpack that."
    elif not node.is_file():
        yield "it does not exist."
    elif stem == name:
        yield 'expected a name that ends in ".py".'
    elif stem == "__init__":
        yield 'this is a package; pass run_fn="package.function" instead of module_file.'
    elif stem in _archive.NEVER_PACKED:
        own = stem == _archive.OWN_PACKAGE
        owner = "this package" if own else "a module of Python's standard library"
        yield f"{stem!r} is {owner}; rename the file."
    elif re.search("[.@]", stem):
        better = re.sub("[.@]", "_", stem)
        yield f'the name of a module has no "." and no "@"; rename it to {better}.py.'


def _own_source(top: str) -> str | None:
    """Returns the path of the user's own module or package `top`; None if it is installed."""
    importlib.invalidate_caches()  # a notebook may just have written it
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module object without a spec
        return None
    if spec is None:
        _logger.warning("%r is not on this machine: the trainer will look for it at run time.", top)
        return None
    if top in _archive.NEVER_PACKED:
        return None
    # A namespace package may have several folders; the first of the user's is taken.
    for path in spec.submodule_search_locations or [spec.origin or ""]:
        if path and not _archive.lies_in_environment(path):
            return absolute(path)
    return None


def _pack(
    source: str, module: str, function: str, destination: str, may_define: MayDefine | None
) -> _archive.UserCode:
    folder, root = os.path.split(source)
    try:
        bundle = _archive.Bundle(_collect.collect(folder, root), folder)
        _check_definition(bundle, module, function, may_define)
        digest = bundle.digest()
        path = os.path.join(absolute(os.fspath(destination)), f"{module}-{digest[:16]}.zip")
        _archive.write_file(path, bundle.to_zip())
    except OSError as error:
        raise ModuleFileError(
            f"Cannot pack {source} into {destination}: {error}", path=source
        ) from error
    return _archive.UserCode(module, function, path, digest)


def _check_definition(
    bundle: _archive.Bundle, module: str, function: str, may_define: MayDefine | None
) -> None:
    """Raises `ModuleFileError` if `module` certainly does not define `function`.

    Otherwise the pipeline would fail after the components before the trainer have run.
    """
    file = bundle.file_of(module)
    if file is None:
        return
    source = bundle.files[file]
    path = os.path.join(bundle.origin, file)
    try:
        tree = _collect.parse(source, path)
        names = _collect.defined_names(source, path)
    except (SyntaxError, ValueError) as error:
        quoted = quote_syntax_error(error, path)
        raise ModuleFileError(f"{path} is not valid Python.\n{quoted}", path=path) from error
    problems = [
        f"line {call.lineno} calls {ast.unparse(call.func)}. {NO_EVAL_MODELS}"
        for call in _collect.removed_calls(tree, function)
    ]
    wrong = _collect.wrong_definition(tree, function) if function == "run_fn" else None
    if wrong is not None:
        problems.append(
            f"line {wrong.lineno}: expected a function that takes one argument, run_fn(fn_args); "
            f"found run_fn({ast.unparse(wrong.args)})."
        )
    raise_problems(ModuleFileError, path, problems, path=path)
    if function in names or any(_makes(node, function) for node in ast.walk(tree)):
        return
    if may_define is None or not may_define(function, path, tree, names):
        raise ModuleFileError(explain_missing(function, path, names), path=path)


def _makes(node: ast.AST, name: str) -> bool:
    """Whether this node may define `name` indirectly."""
    if isinstance(node, ast.ImportFrom):
        return any(alias.name == "*" for alias in node.names)
    if isinstance(node, ast.Global):
        return name in node.names
    # Of a Name, an Attribute and a FunctionDef.
    mentioned = [getattr(node, field, None) for field in ("id", "attr", "name")]
    return not _MAKERS_OF_NAMES.isdisjoint(mentioned)
