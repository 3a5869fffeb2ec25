"""Which files of a folder a module needs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from generic_trainer.errors import ModuleFileError, raise_problems
from generic_trainer.user_code._environment import OWN_PACKAGE, installed_at, is_standard
from generic_trainer.user_code._imports import imported_names
from generic_trainer.user_code._nodes import Node, join
from generic_trainer.user_code._quote import quote_syntax_error

__all__ = ["collect"]


def collect(folder: str, node: Node, module: str) -> dict[str, Node]:
    """Returns the files that importing `module` may need, by their path relative to `folder`.

    Args:
        folder: the user's own path of the folder, for messages.
        node: the same folder, to read from.
        module: top-level module or package in it.

    Raises:
        ModuleFileError: a file cannot be read, or a module has a syntax error; lists all of them.
    """
    collector = _Collector(folder, node)
    collector.add(module)
    raise_problems(ModuleFileError, f"Cannot pack {join(folder, module)}", collector.problems)
    return collector.files


class _Collector:
    def __init__(self, folder: str, node: Node) -> None:
        self.files: dict[str, Node] = {}
        self.problems: list[str] = []
        self._folder = folder
        self._entries = {entry.name: entry for entry in node.iterdir()}
        self._seen = {OWN_PACKAGE}

    def add(self, module: str) -> None:
        pending = [module]
        while pending:
            name = pending.pop()
            if name in self._seen or is_standard(name):
                continue
            self._seen.add(name)
            for path, node in self._find(name).items():
                self.files[path] = node
                if path.endswith(".py"):
                    pending += self._imports(path, node)

    def _find(self, name: str) -> dict[str, Node]:
        """Looks in the order of Python's own finder: package, module, namespace package."""
        entry = self._entries.get(name)
        is_folder = entry is not None and entry.is_dir()
        if entry and is_folder and entry.joinpath("__init__.py").is_file():
            return self._walk(name, entry)
        for suffix in (*EXTENSION_SUFFIXES, ".py"):
            file = self._entries.get(name + suffix)
            if file is not None and file.is_file():
                return {name + suffix: file}
        if entry and is_folder and installed_at(name) is None:
            files = self._walk(name, entry)
            return files if any(path.endswith(".py") for path in files) else {}
        return {}

    def _walk(self, path: str, folder: Node) -> dict[str, Node]:
        try:
            return dict(_walk(path, folder, ()))
        except OSError as error:
            self.problems.append(f"{join(self._folder, path)} cannot be listed: {error}")
            return {}

    def _imports(self, path: str, node: Node) -> set[str]:
        where = join(self._folder, path)
        try:
            return imported_names(ast.parse(node.read_bytes(), where))
        except OSError as error:
            self.problems.append(f"{where} cannot be read: {error}")
        except (SyntaxError, ValueError) as error:
            # A package may carry templates and files for other Pythons that nobody imports.
            if "/" not in path:
                self.problems.append(quote_syntax_error(error, where))
        return set()


def _walk(path: str, folder: Node, above: tuple[str, ...]) -> Iterator[tuple[str, Node]]:
    # Only a local folder can hold a link to a folder above it.
    place = str(folder.resolve()) if isinstance(folder, Path) else path
    if place in above:
        return
    for entry in folder.iterdir():
        if entry.name.startswith(".") or entry.name == "__pycache__":
            continue
        if entry.is_dir():
            yield from _walk(f"{path}/{entry.name}", entry, (*above, place))
        elif entry.is_file() and not entry.name.endswith((".pyc", ".pyo")):
            yield f"{path}/{entry.name}", entry
