"""What the doctor says of packages that are there, and of those that cannot be imported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from generic_trainer.cli import _doctor_packages
from generic_trainer.cli._doctor_packages import (
    import_errors,
    optional_packages,
    required_packages,
)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sound.py").write_text("")
    (tmp_path / "bereft.py").write_text("import a_module_that_nobody_has")
    (tmp_path / "deadly.py").write_text("import os; os.kill(os.getpid(), 11)")
    return tmp_path


def test_what_can_be_imported_has_no_error(modules: Path) -> None:
    assert import_errors(("sound", "json")) == {}


def test_an_import_that_fails(modules: Path) -> None:
    errors = import_errors(("sound", "bereft", "json"))

    assert list(errors) == ["bereft"]
    message, missing = errors["bereft"]
    assert message.startswith("ModuleNotFoundError")
    assert missing == "a_module_that_nobody_has"


def test_an_import_that_takes_the_process_down_does_not_hide_the_next(modules: Path) -> None:
    errors = import_errors(("sound", "deadly", "json", "bereft"))

    assert list(errors) == ["deadly", "bereft"]
    assert "ended with -11" in errors["deadly"][0]


def test_a_package_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_doctor_packages, "_REQUIRED", {"no-such-package": "json"})
    monkeypatch.setattr(_doctor_packages, "_OPTIONAL", {"no-such-engine": ("kfp", "speed")})

    (required,), (optional,) = list(required_packages()), list(optional_packages())

    assert (required.status, optional.status) == ("fail", "missing")
    assert "pip install no-such-package" in required.remedy
    assert re.fullmatch(r"pip install 'kfp[<>=.,\d]+'", optional.remedy)


def test_a_dependency_that_nobody_asks_for_is_named(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (modules / "bereft.py").write_text("raise ModuleNotFoundError('no dill', name='dill')")
    monkeypatch.setattr(_doctor_packages, "_REQUIRED", {"pytest": "bereft"})

    (found,) = required_packages()

    assert found.status == "fail"
    assert "import fails: ModuleNotFoundError: no dill" in found.found
    assert found.remedy.startswith("pip install dill ")


def test_the_last_import_may_take_the_process_down_too(modules: Path) -> None:
    assert list(import_errors(("sound", "deadly"))) == ["deadly"]
