"""One transform graph and one checking process for the whole room."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from generic_trainer.validation import Checker
from tests.training.export import taxi


@pytest.fixture(scope="session")
def checker() -> Iterator[Checker]:
    with Checker(timeout_s=120) as running:
        yield running


@pytest.fixture(scope="session")
def transform_graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What Transform writes: vocabularies of company and payment, a scale for miles."""
    directory = str(tmp_path_factory.mktemp("transform") / "graph")
    subprocess.run([sys.executable, "-m", taxi.__name__, directory], check=True)
    return directory


@pytest.fixture(params=["keras", "tf_keras"], ids=["keras3", "keras2"])
def keras(request: pytest.FixtureRequest) -> Any:
    """Keras 3 and Keras 2, side by side in one process under their own names."""
    return importlib.import_module(request.param)
