"""Inputs and outputs of an executor."""

from __future__ import annotations

from pathlib import Path

import pytest
from tfx import types

from tests import helpers


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> types.Artifact:
    return helpers.write_examples(tmp_path_factory.mktemp("inputs") / "examples")


@pytest.fixture
def outputs(tmp_path: Path) -> dict[str, list[types.Artifact]]:
    return helpers.output_artifacts(tmp_path / "outputs")
