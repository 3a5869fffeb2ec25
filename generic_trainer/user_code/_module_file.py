"""Whether a path can be a module file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from generic_trainer.errors import ModuleFileError, raise_problems
from generic_trainer.user_code._environment import STANDARD_NAMES
from generic_trainer.user_code._nodes import Node, open_node
from generic_trainer.user_code._paths import split

__all__ = ["check_module_file"]


def check_module_file(path: str) -> None:
    """Raises `ModuleFileError` if `path` cannot be imported by the name of the file."""
    try:
        problems = list(_problems(open_node(path), path))
    except OSError as error:
        raise ModuleFileError(f"Module file {path} cannot be read: {error}") from error
    raise_problems(ModuleFileError, f"Module file {path}", problems)


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
