"""y = w x with one weight and squared error: every number of a training can be had by hand."""

from collections.abc import Iterator
from typing import Any

import numpy as np

RATE = 0.1
# Three records, (1, 2, 3) · 2 → (2, 4, 6).
X = np.array([[1.0], [2.0], [3.0]], np.float32)


def config(batches: int, metric: str = "loss", **changes: Any) -> dict[str, Any]:
    """Returns the configuration of an experiment."""
    return {
        "hyperparameters": {"global_batch_size": 1},
        "searcher": {"metric": metric, "max_length": {"batches": batches}},
        **changes,
    }


def steps(count: int) -> Iterator[tuple[float, float]]:
    """Yields (weight before, loss) of gradient descent, batch after batch of one record."""
    w = 0.0
    for index in range(count):
        x = float(index % 3 + 1)
        error = w * x - 2 * x
        yield w, error**2
        w -= RATE * 2 * error * x
