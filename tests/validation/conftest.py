"""One checking process and one folder of models for the whole room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from generic_trainer.validation import Checker


@pytest.fixture(scope="session")
def checker() -> Iterator[Checker]:
    # What rehearses an eval config would import it anew in every process.
    with Checker(timeout_s=60, preload=("tensorflow_model_analysis",)) as running:
        yield running


@pytest.fixture(scope="session")
def good_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tf.Module with variables, a vocabulary asset and a tf.Example signature."""
    from tests.validation import models

    return models.good(tmp_path_factory.mktemp("good") / "1")
