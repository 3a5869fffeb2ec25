"""One transform graph and one checking process for the whole room."""

import subprocess
import sys
from collections.abc import Iterator

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
    pytest.importorskip("tensorflow_transform")
    subprocess.run([sys.executable, "-m", taxi.__name__, directory], check=True)
    return directory
