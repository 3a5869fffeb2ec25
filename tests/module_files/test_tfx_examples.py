"""TFX's own module files train unchanged through GenericTrainer, and the Evaluator blesses them.

They export with `tf.saved_model.save`, which writes a whole model under Keras 2 only: under Keras 3
the variables are there for Python, and missing for BulkInferrer and servers. So they run as they
were written, with `TF_USE_LEGACY_KERAS=1`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks._tfx_examples import write_digits, write_penguins
from pipelines._results import RunResults, last_run

ROOT = Path(__file__).resolve().parents[2]
TAXI_CSV_VARIABLE = "GENERIC_TRAINER_TAXI_CSV"


@pytest.fixture
def penguin_csv(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    write_penguins(folder)
    return folder


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


@pytest.fixture
def mnist_records(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    write_digits(folder)
    return folder


def run_in_keras_2(example: str, data: Path, folder: Path) -> RunResults:
    command = [sys.executable, "-m", "tests.module_files.tfx_examples", example]
    child = subprocess.run(
        [*command, str(data), str(folder)],
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


@pytest.mark.slow
def test_the_mnist_example_is_blessed(mnist_records: Path, tmp_path: Path) -> None:
    assert run_in_keras_2("mnist", mnist_records, tmp_path).blessed


@pytest.mark.slow
def test_the_sklearn_example_is_published(penguin_csv: Path, tmp_path: Path) -> None:
    results = run_in_keras_2("sklearn", penguin_csv, tmp_path)

    assert Path(results.uri("model"), "Format-Serving", "model.pkl").is_file()
