"""Models trained under a strategy leave nothing of it behind."""

from pathlib import Path

import numpy as np
import pytest

from generic_trainer.validation import Checker, ServingContract
from tests.house import run_python
from tests.training.export import taxi
from tests.training.export.serving import move, serve

PROGRAM = "tests.training.export.train_distributed"


def assert_free(directory: Path, keras: str, checker: Checker) -> None:
    """Asserts that the model has no devices or collectives and predicts as it did in training."""
    moved = move(str(directory / keras))
    report = checker.validate(moved, ServingContract(examples=tuple(taxi.examples(8))))
    assert report.passed, report.results
    assert b"CPU:1" not in Path(moved, "saved_model.pb").read_bytes()
    outputs = serve(moved, examples=taxi.examples(8))["outputs"]
    np.testing.assert_allclose(outputs, np.load(directory / f"{keras}.npy"), rtol=1e-5)


def test_mirrored(tmp_path: Path, checker: Checker) -> None:
    run_python("-m", PROGRAM, "mirrored", tmp_path, "keras")
    assert_free(tmp_path, "keras", checker)


# Two workers with Keras 2 export in `tests/module_files/test_penguin_modules.py`.
@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    ["mirrored", pytest.param("multi_worker", marks=pytest.mark.campaign("training"))],
)
def test_keras2(strategy: str, tmp_path: Path, checker: Checker) -> None:
    run_python("-m", PROGRAM, strategy, tmp_path, "tf_keras", TF_USE_LEGACY_KERAS="1")
    assert_free(tmp_path, "tf_keras", checker)
