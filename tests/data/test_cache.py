"""Columns that outlive their process: never other rows than the files', whatever has happened."""

import logging
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from generic_trainer.data import _budget, _factory, count_examples, make_dataset_factory
from generic_trainer.data._cache import DIRECTORY_VARIABLE, LIMIT_VARIABLE, CacheFolder
from tests.data.reading import SCHEMA, ids, numbered, options, schema_of, write, write_files

ONE_PASS = options(shuffle=False)
SHUFFLED = options(num_epochs=2, shuffle_seed=3)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CacheFolder:
    """An empty cache."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "cache"))
    found = CacheFolder.of_environment()
    assert found is not None
    return found


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Counts how often files are parsed."""
    load = Mock(side_effect=_factory.load_columns)
    monkeypatch.setattr(_factory, "load_columns", load)
    return load


def read(pattern: str, asked: Any = ONE_PASS, schema: str = SCHEMA) -> list[int]:
    """Returns the ids of all examples, read as a new process does."""
    return ids(make_dataset_factory()(pattern, asked, schema_of(schema)))


def test_the_second_process_parses_nothing_and_reads_the_same(
    folder: CacheFolder, parses: Mock, taxis: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = read(taxis), read(taxis, SHUFFLED)
    assert parses.call_count == 1
    assert "parsed by an earlier run" in caplog.text
    assert (read(taxis), read(taxis, SHUFFLED)) == first
    assert parses.call_count == 1
    assert count_examples(taxis) == 300
    assert [entry.folder.stat().st_mode & 0o077 for entry in folder.entries()] == [0] or (
        folder.path.stat().st_mode & 0o077 == 0
    )


@pytest.mark.parametrize("change", ["content", "one file more", "schema"])
def test_what_has_changed_is_parsed_anew(
    change: str, folder: CacheFolder, parses: Mock, tmp_path: Path
) -> None:
    pattern, schema = write_files(tmp_path / "data", [numbered(0, 50)], ""), SCHEMA
    file = tmp_path / "data" / "data-00000"
    assert read(pattern) == list(range(50))
    before = file.stat()
    if change == "content":  # of the same length, and with the same time
        write(file, numbered(48, 49) + numbered(1, 50))
        assert file.stat().st_size == before.st_size
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "one file more":
        write(tmp_path / "data" / "data-00001", numbered(50, 60))
    else:
        schema = SCHEMA.replace('feature { name: "clicks" type: INT }', "")
    found = read(pattern, schema=schema)
    assert parses.call_count == 2
    assert len(folder.entries()) == 2
    assert found[:1] == ([48] if change == "content" else [0])
    assert len(found) == (60 if change == "one file more" else 50)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def shuffled(pattern: str, budget_bytes: int, num_epochs: int = 2) -> list[int]:
    factory = make_dataset_factory(memory_budget_bytes=budget_bytes)
    chosen = options(num_epochs=num_epochs, shuffle_seed=5)
    return ids(factory(pattern, chosen, schema_of()))


def test_the_order_is_that_of_a_process_that_parses(
    folder: CacheFolder, taxis: str, parses: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(taxis)
    size = folder.entries()[0].num_bytes
    for budget_bytes in (size * 4, size // 2, 0):  # in memory, and on disk or streaming
        parses.reset_mock()
        mapped = shuffled(taxis, budget_bytes)
        assert shuffled(taxis, budget_bytes, num_epochs=1) == mapped[:300]
        parses.assert_not_called()
        with monkeypatch.context() as context:
            context.setenv(DIRECTORY_VARIABLE, "off")
            assert shuffled(taxis, budget_bytes) == mapped


class ParsesAnew(Exception):
    """Raised instead of parsing."""


def test_what_is_damaged_is_never_read(
    folder: CacheFolder, taxis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = read(taxis)
    (entry,) = folder.entries()
    whole = shutil.copytree(entry.folder, tmp_path / "whole")
    monkeypatch.setattr(_factory, "load_columns", Mock(side_effect=ParsesAnew))
    names = sorted(os.listdir(whole))
    assert {"columns.json", "vocabulary", "0.array"} < set(names)
    for number, name in enumerate(names):
        for damage in (flip, (cut, Path.unlink)[number % 2]):
            damage(entry.folder / name)
            with pytest.raises(ParsesAnew):
                read(taxis)
            shutil.rmtree(entry.folder, ignore_errors=True)
            shutil.copytree(whole, entry.folder)
    assert read(taxis) == expected


def test_what_was_not_used_for_longest_makes_room(
    folder: CacheFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parses: Mock
) -> None:
    patterns = [
        write_files(tmp_path / f"data-{number}", [numbered(number, 400 + number)])
        for number in range(3)
    ]
    for pattern in patterns[:2]:
        read(pattern)
    size = folder.entries()[0].num_bytes
    monkeypatch.setattr(_budget, "_MB", 1)
    monkeypatch.setenv(LIMIT_VARIABLE, str(5 * size // 2))
    for age, entry in enumerate(folder.entries()):
        os.utime(entry.folder, (1000 - age, 1000 - age))
    read(patterns[0])  # used
    read(patterns[2])  # needs room
    assert parses.call_count == 3
    read(patterns[0])
    assert parses.call_count == 3
    read(patterns[1])
    assert parses.call_count == 4
    assert len(folder.entries()) == 2


def test_who_has_opened_it_keeps_it(folder: CacheFolder, taxis: str) -> None:
    expected = read(taxis)
    dataset = make_dataset_factory()(taxis, ONE_PASS, schema_of())
    shutil.rmtree(folder.path)
    assert ids(dataset) == expected


@pytest.mark.parametrize("obstacle", ["limit", "file", "off", "full"])
def test_nothing_that_prevents_caching_costs_the_run(
    obstacle: str,
    folder: CacheFolder,
    taxis: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    if obstacle == "limit":
        monkeypatch.setenv(LIMIT_VARIABLE, "0")
    elif obstacle == "file":
        folder.path.parent.mkdir()
        folder.path.touch()
    elif obstacle == "full":
        full = Mock(side_effect=OSError(28, "No space left on device"))
        monkeypatch.setattr(shutil, "disk_usage", full)
    else:
        monkeypatch.setenv(DIRECTORY_VARIABLE, "off")
    assert len(read(taxis)) == 300
    assert ("The columns are not cached" in caplog.text) == (obstacle != "off")
    assert folder.entries() == []


def test_files_that_change_while_they_are_read_are_not_cached(
    folder: CacheFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern = write_files(tmp_path / "data", [numbered(0, 50)])
    load_columns = _factory.load_columns

    def load(*arguments: object) -> object:
        columns = load_columns(*arguments)  # type: ignore[arg-type]
        write(tmp_path / "data" / "data-00000.gz", numbered(0, 51))
        return columns

    monkeypatch.setattr(_factory, "load_columns", load)
    assert len(read(pattern)) == 50
    assert folder.entries() == []


def test_columns_of_another_user_are_not_read(
    folder: CacheFolder, taxis: str, parses: Mock
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give files away")
    read(taxis)
    os.chown(folder.entries()[0].folder, 65534, 65534)
    read(taxis)
    assert parses.call_count == 2
