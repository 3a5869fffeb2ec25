"""A run that resumes with another number of workers reads the same rows, and ends the same."""

from pathlib import Path

import numpy as np
import pytest

from generic_trainer._core.keras import keras_3_package
from tests.data.reading import write
from tests.examples import example
from tests.training.distributed.test_equal_weights import run_workers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(keras_3_package() is None, reason="needs Keras 3"),
]


@pytest.mark.parametrize(("kind", "first", "then"), [("endless", 2, 1), ("finite", 1, 2)])
def test_one_worker_goes_on_for_several_and_several_for_one(
    kind: str, first: int, then: int, tmp_path: Path
) -> None:
    rows = [example(x=[row / 64, 0.5], y=float(row % 7)) for row in range(64)]
    for run in ("straight", "resumed"):
        (tmp_path / run).mkdir()
        write(tmp_path / run / "data", rows)
    [straight] = run_workers(f"{kind} whole", 1, tmp_path / "straight")
    run_workers(f"{kind} killed", first, tmp_path / "resumed")
    resumed = run_workers(f"{kind} whole", then, tmp_path / "resumed")
    assert [result["resumed"] for result in resumed] == [True] * then
    for result in resumed:
        np.testing.assert_allclose(result["weights"], straight["weights"], rtol=1e-5)
        np.testing.assert_allclose(result["loss"], straight["loss"], rtol=1e-5)
