"""Examples, and workers that need not import TensorFlow anew for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from generic_trainer.launchers.local._nursery import kept_nursery
from tests import helpers


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 32 examples to train on and 8 to evaluate on."""
    folder = tmp_path_factory.mktemp("launchers") / "examples"
    helpers.write_examples(folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def shared_imports() -> Iterator[None]:
    with kept_nursery():
        yield
