"""What can be told of a module file before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from generic_trainer.errors import ModuleFileError, raise_problems
from generic_trainer.user_code._definitions import defined_names, lacks
from generic_trainer.user_code._environment import STANDARD_NAMES
from generic_trainer.user_code._missing import explain_missing
from generic_trainer.user_code._nodes import Node, open_node, split
from generic_trainer.user_code._quote import quote_syntax_error

__all__ = ["check_module_file"]


def check_module_file(path: str, function: str) -> None:
    """Raises `ModuleFileError` if importing `path` can surely not give `function`.

    A pipeline would otherwise find out after the components before the trainer have run.
    """
    try:
        node = open_node(path)
        raise_problems(ModuleFileError, f"Module file {path}", list(_problems(node, path)))
        source = node.read_bytes()
    except OSError as error:
        raise ModuleFileError(f"Module file {path} cannot be read: {error}") from error
    try:
        if lacks(source, path, function):
            raise ModuleFileError(explain_missing(function, path, defined_names(source, path)))
    except (SyntaxError, ValueError) as error:
        text = quote_syntax_error(error, path)
        raise ModuleFileError(f"Module file {path} is not valid Python.\n{text}") from error


def _problems(node: Node, path: str) -> Iterator[str]:
    name = split(path)[1]
    stem = name.removesuffix(".py")
    if node.is_dir():
        yield "expected a Python file, found a folder."
    elif not node.is_file():
        yield "it does not exist."
    elif stem == name:
        yield 'expected a name that ends in ".py".'
    elif stem == "__init__":
        yield 'this is a package; pass run_fn="package.function" instead of module_file.'
    elif stem in STANDARD_NAMES:
        yield f"{stem!r} is a module of Python's standard library; rename the file."
    elif re.search("[.@]", stem):
        better = re.sub("[.@]", "_", stem)
        yield f'the name of a module has no "." and no "@"; rename it to {better}.py.'
