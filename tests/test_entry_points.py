"""Trainer APIs: those of this distribution, those of others, and none."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from generic_trainer import _entry_points
from generic_trainer._entry_points import GROUP, may_define, run_fn_of
from generic_trainer.errors import ConfigurationError, ModuleFileError
from generic_trainer.user_code import UserCode, bundle_function, bundle_module_file
from tests import helpers

API = """
class Main:
    def may_define(self, tree, names):
        return "main" in names

    def run_fn(self, module, function):
        main = getattr(module, "main", None)
        return main and (lambda fn_args: ["from main", main(fn_args)])

MAIN = Main()
"""
MAIN = "def main(fn_args):\n    return fn_args\n"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def add(target: str = "other_api:MAIN", source: str = API) -> None:
        helpers.install(tmp_path / "site", "other_api", source, GROUP, f"main = {target}")
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        importlib.invalidate_caches()

    yield add
    sys.modules.pop("other_api", None)


def bundled(folder: Path, source: str) -> UserCode:
    path = folder / "trainer.py"
    path.write_text(source)
    return bundle_module_file(str(path), str(folder / "bundles"), may_define=may_define)


def run(code: UserCode) -> Any:
    with run_fn_of(code) as run_fn:
        return run_fn(7)


def test_an_api_of_another_distribution(tmp_path: Path, installed: Any) -> None:
    installed()
    code = bundled(tmp_path, MAIN)
    assert run(code) == ["from main", 7]
    with pytest.raises(ModuleFileError, match="does not define 'train'"):
        run(UserCode(code.module, "train", code.bundle))
    # A `run_fn` beside it wins.
    assert run(bundled(tmp_path, MAIN + "\nrun_fn = main")) == 7


def test_the_name_of_an_entry_point_asks_for_its_api(
    tmp_path: Path, installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed()
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "trainer_of_other.py").write_text(MAIN + "\nrun_fn = main\nfit = main")
    monkeypatch.syspath_prepend(str(tmp_path / "source"))
    for function, expected in (("main", ["from main", 7]), ("run_fn", 7), ("fit", 7)):
        dotted = f"trainer_of_other.{function}"
        code = bundle_function(dotted, str(tmp_path / "bundles"), may_define=may_define)
        assert run(code) == expected


def test_a_module_that_no_api_knows(tmp_path: Path, installed: Any) -> None:
    installed()
    with pytest.raises(ModuleFileError, match=r"does not define 'run_fn'.*mean 'ran_fn'") as caught:
        bundled(tmp_path, "def ran_fn(fn_args): pass")
    assert caught.value.path == str(tmp_path / "trainer.py")
    assert "pip install" not in str(caught.value)


@pytest.mark.parametrize("options", [{"target": "nowhere:API"}, {"source": "1 / 0"}])
def test_an_api_that_cannot_be_loaded(tmp_path: Path, installed: Any, options: Any) -> None:
    installed(**options)
    with pytest.raises(ConfigurationError, match=r"trainer API 'main' of .* cannot be loaded"):
        bundled(tmp_path, MAIN)
    assert run(bundled(tmp_path, MAIN + "\nrun_fn = main")) == 7


def test_a_checkout_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer_fn = "def trainer_fn(trainer_fn_args, schema): pass"
    code = bundled(tmp_path, trainer_fn)
    monkeypatch.setattr(_entry_points.importlib.metadata, "entry_points", lambda group: ())
    for attempt in (lambda: bundled(tmp_path, trainer_fn), lambda: run(code)):
        with pytest.raises(ModuleFileError, match=r"define 'run_fn'.*not installed: run `pip ins"):
            attempt()
    assert run(bundled(tmp_path, MAIN + "\nrun_fn = main")) == 7
