"""A folder with user code, and what becomes of it."""

import importlib
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from generic_trainer._entry_points import may_define, run_fn_of
from generic_trainer.user_code import UserCode, bundle_module_file, call_user_function

Write = Callable[..., Path]


class Project:
    """A user's folder, and a destination for its bundles."""

    def __init__(self, folder: Path, destination: Path) -> None:
        self.folder = folder
        self.destination = destination

    def write(self, name: str, source: str | bytes = "", **modules: str) -> Path:
        """Writes a file of the folder, and modules by their names; text is dedented."""
        for module in modules:
            self.write(f"{module}.py", modules[module])
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = source if isinstance(source, bytes) else textwrap.dedent(source).encode()
        path.write_bytes(content)
        return path

    def bundle(self, name: str = "trainer.py") -> UserCode:
        """Bundles a module file of the folder."""
        path = str(self.folder / name)
        return bundle_module_file(path, str(self.destination), may_define=may_define)

    def run(self, name: str = "trainer.py") -> Any:
        """Bundles a module file and calls its run_fn with None."""
        return run(self.bundle(name))


def run(code: UserCode) -> Any:
    """Loads and calls the user's function with None."""
    with run_fn_of(code) as function:
        return call_user_function(function, None, code)


def names(code: UserCode) -> list[str]:
    """Returns the names of the files in a bundle."""
    with zipfile.ZipFile(code.bundle) as archive:
        return archive.namelist()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project", tmp_path / "bundles")


@pytest.fixture
def import_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Yields a function that puts a folder or zip first on sys.path, until the test is over."""
    before = set(sys.modules)

    def add(folder: Path) -> None:
        monkeypatch.syspath_prepend(str(folder))
        importlib.invalidate_caches()

    yield add
    for name in set(sys.modules) - before:
        if not name.startswith(("generic_trainer", "tensorflow")):
            del sys.modules[name]
