"""Models trained under a strategy leave nothing of it behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from generic_trainer.validation import Checker, ServingContract
from tests.training.export import taxi
from tests.training.export.serving import move, serve


def train(strategy: str, directory: Path, *keras: str, **environment: str) -> None:
    """Trains and exports in a process with two logical CPUs."""
    program = [sys.executable, "-m", "tests.training.export.train_distributed"]
    run = subprocess.run(
        [*program, strategy, str(directory), *keras],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]


def assert_free(directory: Path, keras: str, checker: Checker) -> None:
    """Asserts that the model has no devices or collectives and predicts as it did in training."""
    moved = move(str(directory / keras))
    report = checker.validate(moved, ServingContract(examples=tuple(taxi.examples(8))))
    assert report.passed, report.results
    assert b"CPU:1" not in Path(moved, "saved_model.pb").read_bytes()
    outputs = serve(moved, examples=taxi.examples(8))["outputs"]
    np.testing.assert_allclose(outputs, np.load(directory / f"{keras}.npy"), rtol=1e-5)


def test_mirrored(tmp_path: Path, checker: Checker) -> None:
    train("mirrored", tmp_path, "keras")
    assert_free(tmp_path, "keras", checker)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["mirrored", "multi_worker"])
def test_keras2(strategy: str, tmp_path: Path, checker: Checker) -> None:
    train(strategy, tmp_path, "tf_keras", TF_USE_LEGACY_KERAS="1")
    assert_free(tmp_path, "tf_keras", checker)
