"""Every broken model is found by the check meant for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from generic_trainer.validation import Checker
from tests.validation.broken_rows import RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_is_found(name: str, checker: Checker, good_model: Path, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    folder = tmp_path / "model"
    recipe.make(good_model, folder)
    report = checker.validate(str(folder), recipe.contract)
    result = report[recipe.check]
    assert result.status == recipe.status, (result, report.summary())
    assert recipe.told in result.message
    assert result.remedy
    assert report.passed == (recipe.status == "warn"), report.summary()
