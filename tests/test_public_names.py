"""Every public name, pinned: what is added or taken away is seen here."""

import importlib
import re

import pytest

from tests.house import ROOT, modules

# Public module → its `__all__`, from blocks "module:" and indented names.
TABLE = (ROOT / "tests" / "public_names.txt").read_text(encoding="utf-8")
PUBLIC = {
    module: names.split()
    for module, names in re.findall(r"^([\w.]+):\n((?: +.*\n)+)", TABLE, re.MULTILINE)
}
OF_TFX = {f"generic_trainer.{room}" for room in ("components", "executors", "vertex")}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_the_pinned_ones_and_are_there(module: str) -> None:
    if module in OF_TFX or module == "generic_trainer":
        pytest.importorskip("tfx")
    loaded = importlib.import_module(module)
    assert sorted(loaded.__all__) == PUBLIC[module]
    assert [name for name in PUBLIC[module] if not hasattr(loaded, name)] == []
    assert set(PUBLIC[module]) <= set(dir(loaded))


def test_every_other_module_is_private() -> None:
    public = [
        name for name in modules() if not any(part.startswith("_") for part in name.split("."))
    ]
    assert sorted(set(public) - PUBLIC.keys() - WITHOUT_ALL) == []


# Modules whose names are those of another one, and programs.
WITHOUT_ALL = {
    "generic_trainer.estimator.experimental",
    "generic_trainer.estimator.export",
    "generic_trainer.estimator.inputs",
}
