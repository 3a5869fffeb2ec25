"""A run that resumes with another number of workers reads the same rows, and ends the same."""

from pathlib import Path

import numpy as np
import pytest

from generic_trainer._core.keras import keras_3_package
from tests.data.reading import write
from tests.examples import example
from tests.training.distributed.test_equal_weights import results_in, run_in_turn

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(keras_3_package() is None, reason="needs Keras 3"),
]


def test_one_worker_goes_on_for_several_and_several_for_one(tmp_path: Path) -> None:
    rows = [example(x=[row / 64, 0.5], y=float(row % 7)) for row in range(64)]
    changes = {"endless": (2, 1), "finite": (1, 2)}
    folders = {kind: [tmp_path / kind / run for run in ("straight", "resumed")] for kind in changes}
    runs = []
    for kind, (first, then) in changes.items():
        for folder in folders[kind]:
            folder.mkdir(parents=True)
            write(folder / "data", rows)
        straight, resumed = folders[kind]
        runs += [(f"{kind} whole", 1, straight), (f"{kind} killed", first, resumed)]
        runs.append((f"{kind} whole", then, resumed))
    run_in_turn(*runs)
    for kind, (_, then) in changes.items():
        [expected], found = map(results_in, folders[kind])
        for result in found[:then]:
            assert result["resumed"]
            np.testing.assert_allclose(result["weights"], expected["weights"], rtol=1e-5)
            np.testing.assert_allclose(result["loss"], expected["loss"], rtol=1e-5)
