"""Reads source code without running it, and without its warnings: importing it gives them too."""

from __future__ import annotations

import ast
import symtable
import warnings
from importlib.util import decode_source

__all__ = ["defined_names", "parse"]


def parse(source: bytes, path: str) -> ast.Module:
    """Returns the syntax tree.

    Raises:
        SyntaxError, ValueError: the source is not Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source, path)


def defined_names(source: bytes, path: str) -> set[str]:
    """Returns the names that a module assigns, defines or imports at its top level.

    Raises:
        SyntaxError, ValueError: the source is not Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        symbols = symtable.symtable(decode_source(source), path, "exec").get_symbols()
    return {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}
