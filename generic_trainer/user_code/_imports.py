"""Which top-level modules a source file imports, without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

__all__ = ["imported_names"]

# Calls whose first argument is a module name: importlib.import_module, importlib.util.find_spec,
# __import__, importlib.resources.files, pkgutil.get_data.
_IMPORTING_CALLS = frozenset({"import_module", "find_spec", "__import__", "files", "get_data"})


def imported_names(tree: ast.AST) -> set[str]:
    """Returns the top-level names of all absolute imports, wherever in the file they stand.

    1. `import a.b` and `from a.b import c` give "a"; relative imports give nothing.
    2. Calls such as `importlib.import_module("a.b")` give "a"; so does a name that is put together
       at run time, if what is before its first dot is constant: `import_module(f"a.{kind}")`.
    """
    return {
        name.partition(".")[0] for node in ast.walk(tree) for name in _names(node) if name.strip()
    }


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        yield node.module or ""
    elif isinstance(node, ast.Call) and node.args and _called(node) in _IMPORTING_CALLS:
        yield _constant_start(node.args[0])


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _constant_start(argument: ast.expr) -> str:
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    if isinstance(argument, ast.JoinedStr) and argument.values:
        start = _constant_start(argument.values[0])
    elif isinstance(argument, ast.BinOp):
        start = _constant_start(argument.left)
    else:
        return ""
    return start if "." in start else ""
