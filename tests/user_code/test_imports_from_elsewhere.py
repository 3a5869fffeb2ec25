"""Which edits of Python files outside of a bundle make another run key."""

import logging
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import pytest

from generic_trainer.user_code import UserCode, _elsewhere, digest_of_imports
from tests.user_code.conftest import Project


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of PYTHONPATH."""
    path = tmp_path / "folder"
    path.mkdir()
    monkeypatch.syspath_prepend(path)
    return path


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def write_libraries(folder: Path) -> None:
    """Writes modules and packages that import each other in all ways."""
    write(folder / "single.py", "import next_one")
    write(folder / "next_one.py")
    write(folder / "package" / "__init__.py", "from .inner import losses")
    write(folder / "package" / "inner" / "losses.py", "def f():\n    from third import g")
    write(folder / "package" / "table.csv")
    write(folder / "package" / "__pycache__" / "x.py")
    write(folder / "third.py", "import importlib\nimportlib.import_module('fourth.a')")
    write(folder / "fourth" / "a.py")
    write(folder / "plugins" / "one.py", "not Python")
    write(folder / "unrelated.py")
    write(folder / "trainer_kin.py")


MODULE = """
    import os, numpy, single
    from package import x
    def run_fn(fn_args):
        import importlib
        importlib.import_module(f"plugins.{fn_args}")
        from . import trainer_kin
"""
FILES = {
    "single.py": True,
    "next_one.py": True,
    "package/__init__.py": True,
    "package/inner/losses.py": True,
    "package/new.py": True,
    "third.py": True,
    "fourth/a.py": True,
    "plugins/one.py": True,
    "package/table.csv": False,
    "package/__pycache__/x.py": False,
    "unrelated.py": False,
    "trainer_kin.py": False,
}


@pytest.mark.parametrize("name", FILES)
def test_an_edit_of_what_is_imported_is_seen_and_no_other(
    project: Project, folder: Path, name: str
) -> None:
    write_libraries(folder)
    project.write("trainer.py", MODULE)
    code = project.bundle()
    before = digest_of_imports(code)
    write(folder / name, "x = 2")
    assert project.bundle().digest == code.digest
    assert (digest_of_imports(code) != before) == FILES[name]


def test_the_place_does_not_count(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("trainer.py", MODULE)
    digests = set()
    for name in ("a", "b"):
        write_libraries(tmp_path / name)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(tmp_path / name)
            digests.add(digest_of_imports(project.bundle()))
    assert len(digests) == 1 and digests != {digest_of_imports(UserCode("trainer"))}


class EditableFinder:
    """The finder of an editable install, whose folder may have another name."""

    folder: Path

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "broken":
            raise KeyError(name)
        if name != "mylib":
            return None
        spec = PathFinder.find_spec("src", [str(cls.folder)])
        assert spec is not None
        return spec


def test_an_editable_install_counts(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "src" / "__init__.py", "from . import losses")
    EditableFinder.folder = tmp_path
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, EditableFinder])
    project.write("trainer.py", "import broken, mylib.losses\ndef run_fn(fn_args): pass")
    code = project.bundle()
    before = digest_of_imports(code)
    write(tmp_path / "src" / "losses.py", "x = 2")
    assert digest_of_imports(code) != before


def test_a_package_of_the_working_directory_counts(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend("")
    monkeypatch.chdir(tmp_path)
    project.write("trainer.py", "import here\ndef run_fn(fn_args): pass")
    code = project.bundle()
    before = digest_of_imports(code)
    write(tmp_path / "here.py")
    assert digest_of_imports(code) != before


@pytest.mark.parametrize("is_installed", [True, False])
def test_what_a_version_tells_is_not_read(
    project: Project, folder: Path, is_installed: bool
) -> None:
    write_libraries(folder)
    write(folder / "single-1.dist-info" / "RECORD", "x.py,,\nsingle.py,,\n" * is_installed)
    project.write("trainer.py", "import single, yaml, tensorflow\ndef run_fn(fn_args): pass")
    code = project.bundle()
    before = digest_of_imports(code)
    write(folder / "single.py", "import next_one, other")
    assert (digest_of_imports(code) == before) == is_installed


IN_COMPANY = {
    "__init__.py": True,
    "common/losses.py": True,
    "common/other.py": True,
    "tools.py": True,
    "more/deep.py": True,
    "models/__init__.py": True,
    "models/other/trainer.py": False,
    "unrelated.py": False,
}


@pytest.mark.parametrize("name", IN_COMPANY)
def test_of_a_package_around_the_module_what_is_named_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    company = tmp_path / "company"
    for each in IN_COMPANY:
        write(company / each)
    write(company / "common" / "losses.py", "from .. import tools\nfrom ..more.deep import x")
    monkeypatch.syspath_prepend(tmp_path)
    project = Project(company / "models" / "mine", tmp_path / "bundles")
    source = "from company.common.losses import f\nfrom company import models\nrun_fn = f"
    project.write("trainer.py", source)
    code = project.bundle()
    before = digest_of_imports(code)
    write(company / name, "x = 2")
    assert (digest_of_imports(code) != before) == IN_COMPANY[name]


@pytest.mark.parametrize("limit", ["_MOST_FILES", "_MOST_BYTES"])
def test_a_package_that_is_too_large_is_named(
    project: Project,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limit: str,
) -> None:
    write_libraries(folder)
    monkeypatch.setattr(_elsewhere, limit, 1)
    project.write("trainer.py", "import package, single\ndef run_fn(fn_args): pass")
    code = project.bundle()
    with caplog.at_level(logging.WARNING):
        before = digest_of_imports(code)
    assert f"{folder / 'package'} is imported by the module file" in caplog.text
    write(folder / "package" / "__init__.py", "x = 2")
    assert digest_of_imports(code) == before
    write(folder / "single.py", "x = 2")
    assert digest_of_imports(code) != before
