import csv
from pathlib import Path

from pipelines.penguin_data import write_penguin_csv


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_the_table_is_whole_and_missing_values_are_empty_cells(tmp_path: Path) -> None:
    penguins = read(write_penguin_csv(tmp_path / "data"))

    assert len(penguins) == 344
    assert {penguin["species"] for penguin in penguins} == {"Adelie", "Chinstrap", "Gentoo"}
    assert sum(penguin["sex"] == "" for penguin in penguins) == 11
    assert not any("NA" in penguin.values() for penguin in penguins)


def test_a_written_table_is_left_untouched(tmp_path: Path) -> None:
    path = write_penguin_csv(tmp_path)
    written_ns = path.stat().st_mtime_ns

    assert write_penguin_csv(tmp_path) == path
    assert path.stat().st_mtime_ns == written_ns


def test_a_damaged_table_is_written_again(tmp_path: Path) -> None:
    path = write_penguin_csv(tmp_path)
    path.write_text("species\n")

    assert len(read(write_penguin_csv(tmp_path))) == 344
