"""Source of a bundle: what it tells about the user's code, without any of it being run."""

from __future__ import annotations

import ast

from generic_trainer.user_code._archive import UserCode, read_bundle
from generic_trainer.user_code._collect import imported_names, parse


def defines_function(code: UserCode, name: str) -> bool:
    """Whether the module defines, at its top level, a function that takes one argument.

    False where its source cannot tell: it has no bundle, or gets the name from elsewhere.

    Raises:
        ModuleFileError: the bundle is missing or damaged.
    """
    if code.bundle is None:
        return False
    files = read_bundle(code).files
    stem = code.module.replace(".", "/")
    paths = [path for path in (f"{stem}.py", f"{stem}/__init__.py") if path in files]
    return any(
        isinstance(node, ast.FunctionDef) and node.name == name and _takes_one(node.args)
        for path in paths
        for node in parse(files[path], path).body
    )


def imported_packages(code: UserCode) -> set[str]:
    """Returns the top-level names that the files of a bundle import, those of the bundle included.

    Empty where there is no bundle.

    Raises:
        ModuleFileError: the bundle is missing or damaged.
    """
    if code.bundle is None:
        return set()
    names: set[str] = set()
    for path, source in read_bundle(code).files.items():
        if path.endswith(".py"):
            try:
                names |= imported_names(parse(source, path))
            except (SyntaxError, ValueError):  # a template, or for another Python
                continue
    return names


def _takes_one(arguments: ast.arguments) -> bool:
    most = len(arguments.posonlyargs) + len(arguments.args)
    least = most - len(arguments.defaults)
    is_free = most >= 1 or arguments.vararg is not None
    return least <= 1 and is_free and None not in arguments.kw_defaults
