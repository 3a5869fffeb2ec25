"""`generic-trainer doctor`, called like by a user, and its findings about packages."""

import json
import platform
import re
import sys
from pathlib import Path

import pytest

from generic_trainer import cli
from generic_trainer.cli import _doctor

SOUND = _doctor.Observation("tensorflow", "ok", "2.16.2")
BROKEN = _doctor.Observation("tfx-bsl", "fail", "1.16.1, import fails", "pip install dill")


@pytest.mark.parametrize(("observations", "status"), [([SOUND], 0), ([SOUND, BROKEN], 1)])
def test_the_status_depends_on_required_packages(
    observations: list[_doctor.Observation],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(_doctor, "examine", lambda: observations)

    assert cli.main(["doctor"]) == status
    printed = capsys.readouterr().out
    for each in observations:
        assert each.found in printed
        assert each.remedy in printed


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "sound.py").write_text("")
    (tmp_path / "bereft.py").write_text("import a_missing_module")
    (tmp_path / "deadly.py").write_text("import os; os.kill(os.getpid(), 11)")
    return tmp_path


def test_a_crashing_import_does_not_hide_the_next(modules: Path) -> None:
    errors = _doctor.import_errors("sound", "deadly", "json", "bereft")

    assert list(errors) == ["deadly", "bereft"]
    assert errors["deadly"][0] == "the process crashed"


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_doctor, "_REQUIRED", {"no-such-package": "json"})
    monkeypatch.setattr(_doctor, "_OF_TFX", {})
    monkeypatch.setattr(_doctor, "_OPTIONAL", {"no-such-engine": ("x", "kfp", "speed")})

    (required,), (optional,) = list(_doctor.required_packages()), list(_doctor.optional_packages())

    assert (required.status, optional.status) == ("fail", "missing")
    assert "pip install no-such-package" in required.remedy
    assert re.fullmatch(r"pip install 'kfp[<>=.,\d]+'", optional.remedy)


@pytest.mark.parametrize(
    ("python", "libc", "remedy"),
    [("3.10", "2.31", "pip install "), ("3.12", "2.39", "pip install "), ("3.13", "2.41", "pip "),
     ("3.12", "2.36", "use Python 3.10, or a system with glibc 2.39"), ("3.11", "", "use Python")],
)  # fmt: skip
def test_tfx_is_recommended_where_it_can_be_installed(
    python: str, libc: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "python_version_tuple", lambda: (*python.split("."), "0"))
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc" if libc else "", libc))
    monkeypatch.setattr(_doctor, "_version", lambda distribution: None)
    found = {each.subject: each.remedy for each in _doctor.optional_packages()}
    assert found["tfx"].startswith(remedy)
    assert (
        "generic-trainer" not in found["scikit-learn"] and "scikit-learn" in found["scikit-learn"]
    )
    needs_beam = remedy.startswith("pip") and sys.version_info < (3, 11)
    assert ("apache-beam[gcp]" in found["tfx"]) == needs_beam


def test_an_optional_package_that_cannot_be_imported(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optional = {"pytest": ("bereft", "kfp", "speed"), "numpy": ("sound", "ray", "more speed")}
    monkeypatch.setattr(_doctor, "_OPTIONAL", optional)
    broken, sound = list(_doctor.optional_packages())
    assert (broken.status, sound.status) == ("warn", "ok")
    assert "import fails: ModuleNotFoundError" in broken.found
    assert broken.remedy.startswith("pip install --force-reinstall ")


def test_an_undeclared_dependency_is_named(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (modules / "bereft.py").write_text("raise ModuleNotFoundError('no dill', name='dill')")
    monkeypatch.setattr(_doctor, "_REQUIRED", {"pytest": "bereft"})
    monkeypatch.setattr(_doctor, "_OF_TFX", {})

    (found,) = _doctor.required_packages()

    assert found.status == "fail"
    assert "import fails: ModuleNotFoundError: no dill" in found.found
    assert found.remedy.startswith("pip install dill ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("legacy", "keras"),
    [("0", "3."), pytest.param("1", "2.", marks=pytest.mark.campaign("_core", "cli"))],
)
def test_this_environment_is_sound(
    legacy: str, keras: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", legacy)
    assert cli.main(["doctor", "--json"]) == 0
    found = {each["subject"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["tensorflow"]["status"] == found["tfx"]["status"] == "ok"
    assert f"tf.keras is Keras {keras}" in found["Keras"]["found"]
