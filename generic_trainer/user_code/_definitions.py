"""Whether a module defines a name, as far as its source tells."""

from __future__ import annotations

import ast
import symtable
from importlib.util import decode_source

__all__ = ["defined_names", "lacks"]

# A module that uses one of these can define names that its source does not show.
_MAKERS_OF_NAMES = frozenset({"__getattr__", "exec", "globals", "modules", "setattr", "vars"})


def lacks(source: bytes, path: str, name: str) -> bool:
    """Whether importing the module can surely not define `name`.

    Args:
        source: the module.
        path: for the message of a syntax error.
        name: of a function.

    Raises:
        SyntaxError, ValueError: the source is not Python.
    """
    tree = ast.parse(source, path)
    return name not in defined_names(source, path) and not any(
        _may_define(node, name) for node in ast.walk(tree)
    )


def defined_names(source: bytes, path: str) -> set[str]:
    """Returns the names that the module assigns, defines or imports at its top level."""
    symbols = symtable.symtable(decode_source(source), path, "exec").get_symbols()
    return {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}


def _may_define(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.ImportFrom):
        return any(alias.name == "*" for alias in node.names)
    if isinstance(node, ast.Global):
        return name in node.names
    mentioned = (
        getattr(node, "id", None),  # Name
        getattr(node, "attr", None),  # Attribute
        getattr(node, "name", None),  # FunctionDef
    )
    return not _MAKERS_OF_NAMES.isdisjoint(mentioned)
