"""Every variable of a checkpoint is read, and odd values are found."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.validation._model import read_variables
from tests.validation.conftest import Check
from tests.validation.models import ROWS, serving
from tests.validation.recipes import EVALUATED


def test_odd_and_damaged_variables_are_found(tmp_path: Path) -> None:
    prefix = tf.train.Checkpoint(
        good=tf.Variable(np.arange(1000.0)),
        nan=tf.Variable([1.0, np.nan, np.inf]),
        infinite=tf.Variable([np.inf], dtype=tf.bfloat16),
        word=tf.Variable(["word"]),
        number=tf.Variable([3]),
    ).write(str(tmp_path / "variables"))
    key = "{}/.ATTRIBUTES/VARIABLE_VALUE".format
    found = read_variables(tmp_path / "variables")
    assert (found.nan, found.infinite) == ([key("nan")], [key("infinite")])
    assert not found.unreadable

    (shard,) = tmp_path.glob("variables.data-*")
    content = bytearray(shard.read_bytes())
    content[content.index(np.arange(1000.0).tobytes())] ^= 1
    shard.write_bytes(content)
    assert list(read_variables(Path(prefix)).unreadable) == [key("good")]


@pytest.mark.parametrize(("kind", "status"), [("table", "warn"), ("variable", "fail")])
def test_nan_that_stands_for_an_unknown_mean(kind: str, status: str, check: Check) -> None:
    means = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    means.insert([0, 1], [0.5, np.nan])
    variable = tf.Variable([0.5, np.nan])

    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        keys = tf.constant([0, 1], tf.int64)
        mean = means.lookup(keys) if kind == "table" else variable
        return {"y": x - tf.where(tf.math.is_nan(mean), 0.0, mean)}

    kept = {"means": means} if kind == "table" else {"variable": variable}
    report = check(serving(serve, ROWS, **kept), EVALUATED)
    result = report["variables_finite"]
    assert result.status == status and "severities" in result.remedy, result
    assert report.passed == (status == "warn"), report.summary()
