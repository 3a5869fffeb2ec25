"""Inputs of small pipelines."""

import pytest

from tests import helpers


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> str:
    return helpers.write_examples(tmp_path_factory.mktemp("inputs") / "examples").uri
