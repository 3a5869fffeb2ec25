"""TFX's own module files train unchanged through GenericTrainer, and the Evaluator blesses them.

They export with `tf.saved_model.save`, which writes a whole model under Keras 2 only: under Keras 3
the variables are there for Python, and missing for BulkInferrer and servers. So they run as they
were written, with `TF_USE_LEGACY_KERAS=1`.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines._results import RunResults, last_run
from pipelines.penguin_data import write_penguin_csv

ROOT = Path(__file__).resolve().parents[2]
TAXI_CSV_VARIABLE = "GENERIC_TRAINER_TAXI_CSV"
MEASUREMENTS = {
    "culmen_length_mm": "bill_length_mm",
    "culmen_depth_mm": "bill_depth_mm",
    "flipper_length_mm": "flipper_length_mm",
    "body_mass_g": "body_mass_g",
}


@pytest.fixture
def penguin_csv(tmp_path: Path) -> Path:
    """The penguins as TFX's example has them: whole rows, numbers only, and its column names."""
    with write_penguin_csv(tmp_path / "original").open() as file:
        rows = list(tfx_rows(csv.DictReader(file)))
    folder = tmp_path / "data"
    folder.mkdir()
    with (folder / "penguins.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=["species", *MEASUREMENTS])
        writer.writeheader()
        writer.writerows(rows)
    return folder


def tfx_rows(penguins: Iterator[dict[str, str]]) -> Iterator[dict[str, float]]:
    species = ["Adelie", "Chinstrap", "Gentoo"]
    for penguin in penguins:
        if all(penguin[name] for name in MEASUREMENTS.values()):
            numbers = {name: float(penguin[original]) for name, original in MEASUREMENTS.items()}
            yield {"species": species.index(penguin["species"]), **numbers}


@pytest.fixture
def taxi_csv(tmp_path: Path) -> Path:
    """A folder with nothing but the Chicago taxi trips, which are not part of this repository."""
    beside_the_checkout = ROOT.parent / "shared" / "data" / "chicago_taxi" / "data.csv"
    path = Path(os.environ.get(TAXI_CSV_VARIABLE, beside_the_checkout))
    if not path.is_file():
        pytest.skip(f"no taxi trips in {path}: set {TAXI_CSV_VARIABLE} to TFX's taxi data.csv")
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "data.csv").symlink_to(path)
    return folder


def run_in_keras_2(example: str, csv_folder: Path, folder: Path) -> RunResults:
    command = [sys.executable, "-m", "tests.module_files.tfx_examples", example]
    child = subprocess.run(
        [*command, str(csv_folder), str(folder)],
        cwd=ROOT,
        env={**os.environ, "TF_USE_LEGACY_KERAS": "1"},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr[-5000:]
    return last_run(str(folder / "metadata.db"))


@pytest.mark.slow
def test_the_penguin_example_is_blessed(penguin_csv: Path, tmp_path: Path) -> None:
    results = run_in_keras_2("penguin", penguin_csv, tmp_path)

    assert results.blessed
    assert Path(results.uri("model"), "Format-Serving", "saved_model.pb").is_file()


@pytest.mark.slow
def test_the_taxi_example_is_blessed(taxi_csv: Path, tmp_path: Path) -> None:
    results = run_in_keras_2("taxi", taxi_csv, tmp_path)

    assert results.blessed
    assert Path(results.uri("model"), "Format-Serving", "saved_model.pb").is_file()
