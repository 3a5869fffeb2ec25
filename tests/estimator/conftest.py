"""A straight line to learn, and estimators that learn it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from generic_trainer.estimator import tf
from tests.examples import example

STEPS = 40


def examples(count: int = 32) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns x float32 [N, 1] in [-1, 1], and whether it is positive, int64 [N, 1]."""
    x = np.linspace(-1, 1, count, dtype=np.float32)[:, None]
    return {"x": x}, (x > 0).astype(np.int64)


def input_fn(epochs: int | None = None) -> Any:
    return tf.data.Dataset.from_tensor_slices(examples()).batch(8).repeat(epochs)


def columns() -> list[Any]:
    return [tf.feature_column.numeric_column("x")]


def receiver_fn() -> Any:
    spec = tf.feature_column.make_parse_example_spec(columns())
    return tf.estimator.export.build_parsing_serving_input_receiver_fn(spec)()


def serialized(*values: float) -> list[bytes]:
    """Returns tf.Examples with these values of x."""
    return [example(x=value) for value in values]


@pytest.fixture
def train(tmp_path: Path) -> Callable[[Any], dict[str, Any]]:
    """Trains an estimator and returns its evaluation, after all of it has been of use."""

    def run(estimator: Any) -> dict[str, Any]:
        estimator.train(input_fn, steps=STEPS)
        evaluation = estimator.evaluate(lambda: input_fn(1))
        assert len(list(estimator.predict(lambda: input_fn(1)))) == 32
        exported = estimator.export_saved_model(str(tmp_path / "export"), receiver_fn)
        assert "serving_default" in tf.saved_model.load(exported.decode()).signatures
        assert evaluation["global_step"] == STEPS
        return evaluation

    return run
