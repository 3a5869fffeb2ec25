"""Every broken model is found by the check meant for it."""

from pathlib import Path

import pytest

from tests.validation.broken_rows import RECIPES
from tests.validation.conftest import Check
from tests.validation.recipes import Recipe


@pytest.mark.parametrize("name", RECIPES)
def test_is_found(name: str, check: Check, good_model: Path, tmp_path: Path) -> None:
    find(RECIPES[name], check, good_model, tmp_path)


def find(recipe: Recipe, check: Check, good_model: Path, tmp_path: Path) -> None:
    """Makes a broken model and looks whether it is found, or cannot be."""
    recipe.make(good_model, tmp_path / "model")
    report = check(tmp_path / "model", recipe.contract_for(good_model))
    if recipe.missed:
        assert report.passed and not report.warnings, report.summary()
        return
    result = report[recipe.check]
    assert result.status == recipe.status, (result, report.summary())
    assert recipe.told in result.message
    assert result.remedy
    assert report.passed == (recipe.status == "warn"), report.summary()
