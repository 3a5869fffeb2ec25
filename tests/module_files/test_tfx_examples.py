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

import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits

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


@pytest.fixture
def mnist_records(tmp_path: Path) -> Path:
    """Handwritten digits in the form of MNIST: 28 x 28 pixels in [-0.5, 0.5]."""
    digits = load_digits()
    images = np.kron(digits.images / 16, np.ones([3, 3])) - 0.5
    images = np.pad(images, [(0, 0), (2, 2), (2, 2)], constant_values=-0.5).reshape(-1, 784)
    folder = tmp_path / "data"
    folder.mkdir()
    with tf.io.TFRecordWriter(str(folder / "digits.gz"), "GZIP") as writer:
        for image, digit in zip(images, digits.target, strict=True):
            example = tf.train.Example()
            example.features.feature["image_floats"].float_list.value[:] = image
            example.features.feature["image_class"].int64_list.value[:] = [digit]
            writer.write(example.SerializeToString())
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
