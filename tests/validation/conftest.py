"""One checking process and one folder of models for the whole room."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from generic_trainer.validation import Checker, ServingContract, ValidationReport, all_checks

Check = Callable[..., ValidationReport]


@pytest.fixture(scope="session")
def checker() -> Iterator[Checker]:
    # What rehearses an eval config would import it anew in every process.
    with Checker(timeout_s=300, preload=("tensorflow_model_analysis",)) as running:
        yield running


@pytest.fixture
def check(checker: Checker, tmp_path: Path) -> Check:
    """Checks a model: a folder, or a module, which is saved as `tmp_path / "model"`.

    `only` names the checks that a test is about; the others are switched off, such as a rehearsal,
    which takes seconds. Most checks look at what `scores` has scored.
    """

    def check(
        model: Any, contract: ServingContract | None = None, *, only: str = ""
    ) -> ValidationReport:
        from tests.validation import models

        if only:
            contract = contract or ServingContract(signatures=())
            others = {each.name for each in all_checks()} - set(only.split())
            severities = {**dict.fromkeys(others, "skip"), **contract.severities}
            contract = dataclasses.replace(contract, severities=severities)
        folder = model if isinstance(model, Path) else models.save(model, tmp_path / "model")
        return checker.validate(str(folder), contract)

    return check


@pytest.fixture(scope="session")
def good_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tf.Module with variables, a vocabulary asset and a tf.Example signature."""
    from tests.validation import models

    return models.good(tmp_path_factory.mktemp("good") / "1")


@pytest.fixture
def copy(good_model: Path, tmp_path: Path) -> Path:
    """A copy of the good model."""
    import shutil

    return Path(shutil.copytree(good_model, tmp_path / "model"))
