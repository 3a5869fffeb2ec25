"""Fixtures for the reader."""

import itertools
from pathlib import Path

import pytest

from tests.data.reading import numbered, write_files


@pytest.fixture(scope="session")
def taxis(tmp_path_factory: pytest.TempPathFactory) -> str:
    """300 examples of `reading.SCHEMA` in three files of different length; their pattern."""
    directory: Path = tmp_path_factory.mktemp("taxis")
    return write_files(directory, [numbered(0, 150), numbered(150, 200), numbered(200, 300)])


@pytest.fixture(scope="session")
def many_files(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Fifty files of up to six examples each, some of none; their pattern."""
    sizes = [number * 5 % 7 for number in range(50)]
    ends = itertools.accumulate(sizes)
    files = [numbered(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return write_files(tmp_path_factory.mktemp("many"), files)
