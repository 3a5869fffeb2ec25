"""Which files of a folder a module needs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from generic_trainer.errors import ModuleFileError, raise_problems
from generic_trainer.user_code._environment import (
    OWN_PACKAGE,
    STANDARD_NAMES,
    installed_at,
    lies_in_environment,
)
from generic_trainer.user_code._imports import imported_names
from generic_trainer.user_code._nodes import Node, open_folder, open_node
from generic_trainer.user_code._parse import parse
from generic_trainer.user_code._paths import join
from generic_trainer.user_code._quote import quote_syntax_error

__all__ = ["collect"]


def collect(folder: str, root: str) -> dict[str, bytes]:
    """Reads the files that importing `root` may need.

    Args:
        folder: where the user's code lies.
        root: the entry of the folder to start from, `trainer.py` or a package's folder.

    Returns:
        Path relative to `folder`, with forward slashes → contents.

    Raises:
        ModuleFileError: files cannot be read or have a syntax error; lists all of them.
        OSError: the folder cannot be listed.
    """
    collector = _Collector(folder)
    collector.follow(root)
    raise_problems(ModuleFileError, f"Cannot pack the code in {folder}", collector.problems)
    return collector.files


class _Collector:
    def __init__(self, folder: str) -> None:
        self.files: dict[str, bytes] = {}
        self.problems: list[str] = []
        self._folder = folder
        self._entries = {entry.name: entry for entry in open_folder(folder).iterdir()}

    def follow(self, root: str) -> None:
        entry = open_node(join(self._folder, root))
        seen = STANDARD_NAMES | {OWN_PACKAGE, root.partition(".")[0]}
        names = self._add(self._walk(root, entry) if entry.is_dir() else {root: entry}) - seen
        while names:
            seen |= names
            imported = [self._add(self._find(name)) for name in sorted(names)]
            names = set().union(*imported) - seen

    def _find(self, name: str) -> dict[str, Node]:
        """Looks in the order of Python's own finder: package, module, namespace package."""
        # A module file in site-packages has all that is installed for neighbours.
        if lies_in_environment(self._folder) and installed_at(name) is not None:
            return {}
        entry = self._entries.get(name)
        folder = entry if entry is not None and entry.is_dir() else None
        if folder and folder.joinpath("__init__.py").is_file():
            return self._walk(name, folder)
        for suffix in (*EXTENSION_SUFFIXES, ".py"):
            file = self._entries.get(name + suffix)
            if file is not None and file.is_file():
                return {name + suffix: file}
        return self._find_namespace(name, folder) if folder else {}

    def _find_namespace(self, name: str, folder: Node) -> dict[str, Node]:
        if installed_at(name) is not None:
            return {}
        files = self._walk(name, folder)
        return files if any(path.endswith(".py") for path in files) else {}

    def _walk(self, path: str, folder: Node) -> dict[str, Node]:
        try:
            return dict(_walk(path, folder, ()))
        except OSError as error:
            self.problems.append(f"{join(self._folder, path)} cannot be listed: {error}")
            return {}

    def _add(self, nodes: dict[str, Node]) -> set[str]:
        """Reads the files and returns the names that they import."""
        names: set[str] = set()
        for path, node in nodes.items():
            try:
                self.files[path] = node.read_bytes()
            except OSError as error:
                self.problems.append(f"{join(self._folder, path)} cannot be read: {error}")
            else:
                names |= self._imports(path) if path.endswith(".py") else set()
        return names

    def _imports(self, path: str) -> set[str]:
        where = join(self._folder, path)
        try:
            return imported_names(parse(self.files[path], where))
        except (SyntaxError, ValueError) as error:
            # A package may carry templates and files for other Pythons that nobody imports.
            if "/" not in path:
                quoted = textwrap.indent(quote_syntax_error(error, where), "   ")
                self.problems.append(f"{where} is not valid Python.\n{quoted}")
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
