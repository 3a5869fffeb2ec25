"""Examples, and the nodes of a Ray cluster."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import helpers
from tests.launchers.engines import shared_folder
from tests.launchers.ray_nodes import two_nodes


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """A folder with 32 examples to train on and 8 to evaluate on."""
    folder = shared_folder(pytestconfig, tmp_path_factory.mktemp("launchers")) / "examples"
    helpers.write_examples(folder)
    return folder


@pytest.fixture(scope="session")
def ray_nodes() -> Iterator[Any]:
    """Two nodes of a Ray cluster, to which this process is connected."""
    with two_nodes() as cluster:
        yield cluster
