"""Fixtures for the reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.reading import numbered, write_files


@pytest.fixture(scope="session")
def taxis(tmp_path_factory: pytest.TempPathFactory) -> str:
    """300 examples of `reading.SCHEMA` in three files of different length; their pattern."""
    directory: Path = tmp_path_factory.mktemp("taxis")
    return write_files(directory, [numbered(0, 150), numbered(150, 200), numbered(200, 300)])
