"""TFX's own module files train unchanged through GenericTrainer, and the Evaluator blesses them.

They export with `tf.saved_model.save`, which writes a whole model under Keras 2 only: under Keras 3
the variables are there for Python, and missing for BulkInferrer and servers. So they run as they
were written, with `TF_USE_LEGACY_KERAS=1`.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks._tfx_examples import write_digits, write_penguins
from pipelines._results import last_run
from tests.house import ROOT, run_python

TAXI_CSV_VARIABLE = "GENERIC_TRAINER_TAXI_CSV"


def link_taxi_trips(folder: Path) -> None:
    """Links the Chicago taxi trips, which are not part of this repository."""
    beside_the_checkout = ROOT.parent / "shared" / "data" / "chicago_taxi" / "data.csv"
    path = Path(os.environ.get(TAXI_CSV_VARIABLE, beside_the_checkout))
    if not path.is_file():
        pytest.skip(f"no taxi trips in {path}: set {TAXI_CSV_VARIABLE} to TFX's taxi data.csv")
    (folder / "data.csv").symlink_to(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "write", "file"),
    [
        ("penguin", write_penguins, "saved_model.pb"),
        ("taxi", link_taxi_trips, "saved_model.pb"),
        pytest.param(
            *("mnist", write_digits, "saved_model.pb"),
            marks=pytest.mark.campaign("data", "executors", "user_code"),
        ),
        ("sklearn", write_penguins, "model.pkl"),
    ],
)
def test_the_model_is_published_and_blessed(
    example: str, write: Callable[[Path], object], file: str, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data")
    words = ("-m", "tests.module_files.tfx_examples", example, tmp_path / "data", tmp_path)
    run_python(*words, TF_USE_LEGACY_KERAS="1")
    results = last_run(str(tmp_path / "metadata.db"))
    assert Path(results.uri("model"), "Format-Serving", file).is_file()
    assert example == "sklearn" or results.blessed  # no Evaluator reads that one
