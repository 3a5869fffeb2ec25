"""Python files that user code imports from elsewhere: of no bundle, and of no release.

They lie in a folder of `PYTHONPATH`, in the working directory, or in that of an editable install.
"""

import ast
import contextlib
import importlib
import importlib.util
import itertools
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from generic_trainer._core.texts import record_has_module
from generic_trainer.user_code import _archive, _collect

# A folder with more is not code alone, or takes too long to read.
_MOST_FILES = 10_000
_MOST_BYTES = 16 << 20

_Name = tuple[str, ...]  # ("a", "b") of the module a.b

_logger = logging.getLogger(__name__)


def digest_of_imports(code: _archive.UserCode) -> str:
    """Returns a digest of the files that a bundle's files import from elsewhere, and theirs.

    1. A package is taken whole, as beside a module file, but its Python files alone: programs may
       write into it, and it may have large data.
    2. Of a package around the user's own folder, as in a repository of many models, only those
       modules and packages are taken that the code names.
    3. A package that is too large is left out, with a warning.

    The digest does not depend on where the files lie.

    Raises:
        ModuleFileError: the bundle is missing or damaged.
    """
    files: dict[str, bytes] = {}
    if code.bundle is not None:
        importlib.invalidate_caches()  # a notebook may just have written them
        files = _Search(_archive.read_bundle(code)).files
    return _archive.Bundle(files, "").digest()


class _Search:
    def __init__(self, bundle: _archive.Bundle) -> None:
        self.files: dict[str, bytes] = {}
        self._origin = Path(bundle.origin).resolve()
        self._places: dict[str, list[Path]] = {}  # top-level name → its files or folders
        self._read: set[tuple[Path, _Name]] = set()
        passed = bundle.modules | _archive.NEVER_PACKED
        waiting = [(path, source, _Name()) for path, source in bundle.files.items()]
        while waiting:
            for name in sorted(_imports(*waiting.pop())):
                if name[0] not in passed:
                    waiting.extend(self._taken(name))

    def _taken(self, name: _Name) -> Iterator[tuple[str, bytes, _Name]]:
        """Yields path, source and package of the files that a name adds."""
        if name[0] not in self._places:
            self._places[name[0]] = _find(name[0])
        for place in self._places[name[0]]:
            for end in range(1, len(name) + 1):
                part = name[:end]
                path = place.joinpath(*part[1:])
                is_around = self._origin.is_relative_to(path)
                if (path, part) not in self._read:
                    self._read.add((path, part))
                    for file, node in _files(path, "/".join(part), is_around).items():
                        # One that cannot be read is left to the import.
                        with contextlib.suppress(OSError):
                            self.files[file] = node.read_bytes()
                            yield file, self.files[file], tuple(file.split("/")[:-1])
                if not is_around:
                    break


def _find(top: str) -> list[Path]:
    """Returns where a top-level module lies, except for those that have a version."""
    try:
        spec = importlib.util.find_spec(top)
    except Exception:  # a module object without a spec; or by the finder of an editable install
        return []
    paths = [*(spec.submodule_search_locations or ()), spec.origin or ""] if spec else []
    if len(paths) > 1:
        paths.pop()  # the package's own __init__.py
    places = [Path(path).resolve() for path in paths if path and os.path.exists(path)]
    return [place for place in places if not _has_version(top, place)]


def _has_version(top: str, place: Path) -> bool:
    """Whether a module is of Python, or of a distribution that is installed there."""
    if _archive.lies_in_environment(str(place)):
        return True
    for record in place.parent.glob("*.dist-info/RECORD"):  # of `pip install --target`
        with contextlib.suppress(OSError, ValueError):
            if record_has_module(record.read_text(encoding="utf-8"), top):
                return True
    return False


def _files(path: Path, name: str, is_around: bool) -> dict[str, Path]:
    """Returns the Python files of a module or package: path below its parent → file."""
    if is_around:
        return {f"{name}/__init__.py": path / "__init__.py"}
    if not path.is_dir():
        return {f"{name}.py": path.with_suffix(".py")}
    files: dict[str, Path] = {}
    size = 0
    with contextlib.suppress(OSError):  # it cannot be listed
        for number, (file, node) in enumerate(_collect.walk(name, path, ())):
            if isinstance(node, Path) and node.suffix == ".py":
                files[file] = node
                size += node.stat().st_size
            if number >= _MOST_FILES or size > _MOST_BYTES:
                _logger.warning(
                    "%s is imported by the module file, and too large to be compared: after a "
                    "change there, a killed run would be resumed. Install it with a version.",
                    path,
                )
                return {}
    return files


def _imports(path: str, source: bytes, package: _Name) -> set[_Name]:
    """Returns the names that a file may import; of `from a import b` that is a.b.

    Args:
        path: of the file.
        source: its content.
        package: the package in which it lies; empty if its relative imports do not matter.
    """
    names: set[_Name] = set()
    try:
        tree = _collect.parse(source, path) if path.endswith(".py") else ast.Module([], [])
    except (SyntaxError, ValueError):  # a template, or for another Python
        return names
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            names |= {tuple(name.split(".")) for name in _collect.names_of(node)}
        elif node.level <= len(package):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            module = node.module.split(".") if node.module else []
            names |= {(*above, *module, alias.name) for alias in node.names}
    # A name that is composed at run time ends before its first part that is.
    return {tuple(itertools.takewhile(str.isidentifier, name)) for name in names} - {()}
