"""What rounding explains, by the floats that an output was computed from, and what it does not."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer.validation import ServingContract
from generic_trainer.validation._scoring import Feed, Scores, difference
from tests.examples import example
from tests.validation.conftest import Check
from tests.validation.models import ROWS, SERIALIZED, serving
from tests.validation.recipes import EVALUATED


def alone(x: tf.Tensor, dtype: Any) -> tf.Tensor:
    """Returns 1 for a row that is scored alone, and 0 in a batch."""
    return tf.cast(tf.shape(x)[0] == 1, dtype)


def cast_late(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x * (1.0 + 4e-6 * alone(x, x.dtype)), tf.float64)


def cast_early(x: tf.Tensor) -> tf.Tensor:
    x = tf.cast(x, tf.float64)
    return x * (1.0 + 4e-6 * alone(x, x.dtype))


def micros(x: tf.Tensor) -> tf.Tensor:
    """An amount of money, of which float32 has every second one."""
    return tf.cast(tf.round(2.4e7 + 1e5 * x), tf.int64) + 2 * alone(x, tf.int64)


def classes(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.round(1e5 + 1e3 * x), tf.int64) + 2 * alone(x, tf.int64)


def ids(x: tf.Tensor) -> tf.Tensor:
    """Keys that no float is behind, but for the number of rows."""
    return tf.fill([tf.shape(x)[0]], 30_000_000) + 2 * alone(x, tf.int32)


def chosen_keys(x: tf.Tensor) -> tf.Tensor:
    """Keys that floats choose, and do not compute."""
    best = tf.argmax(tf.concat([x, -x], 1), axis=1, output_type=tf.int32)
    keys = tf.constant([30_000_000, 40_000_000, 50_000_000, 60_000_000], tf.int64)
    return tf.gather(keys, best) + 2 * alone(x, tf.int64)


def exploding(x: tf.Tensor) -> tf.Tensor:
    """Prices, one of which is far from the others."""
    price = 10.0 + tf.range(tf.shape(x)[0], dtype=x.dtype) + 0.0 * x[:, 0]
    return tf.where(price == 15.0, 1e9, price)


def waves(x: tf.Tensor) -> tf.Tensor:
    return tf.complex(x, 0.1 * x)


def waves_of_the_batch(x: tf.Tensor) -> tf.Tensor:
    return tf.complex(x, x + tf.reduce_sum(x))


def waves_at_random(x: tf.Tensor) -> tf.Tensor:
    return tf.complex(x, tf.random.uniform(tf.shape(x)))


@pytest.mark.parametrize(
    ("function", "failing"),
    [
        (cast_late, ""),
        (cast_early, "row_independence"),
        (micros, ""),
        (classes, "row_independence"),
        (ids, "row_independence"),
        (chosen_keys, "row_independence"),
        (exploding, "row_independence"),
        (waves, ""),
        (waves_of_the_batch, "row_independence"),
        (waves_at_random, "deterministic"),
    ],
)
def test_rounding_is_that_of_the_floats_behind_an_output(
    function: Callable[[tf.Tensor], tf.Tensor], failing: str, check: Check
) -> None:
    report = check(serving(lambda x: {"y": function(x)}, ROWS), EVALUATED)
    assert [failure.name for failure in report.failures] == [failing] * bool(failing)


def test_a_row_beside_larger_ones_is_compared_in_their_size() -> None:
    batch = np.array([[1e-6], [1.0], [-1.0]], np.float32)
    rounded = batch[:1] + np.float32(3e-6)
    assert not difference(rounded, batch[:1], batch)[0]
    assert difference(rounded, batch[:1], batch * np.float32(1e-5))[1]


@pytest.mark.parametrize("largest", [1e5, 1e30, np.inf, np.nan])
def test_a_row_is_not_compared_in_the_size_of_one_huge_row(largest: float) -> None:
    batch = np.arange(1.0, 21.0, 0.5, np.float32)[:, np.newaxis]
    batch[-1] = largest
    assert difference(batch[1:2], batch[:1], batch)[1]
    small = 0.5 + np.float32(1e-5) * batch
    small[-1] = largest
    beside = np.hstack([np.full_like(batch, 1e9), small])
    feed = Feed({"x": beside}, "", real=True, serialized=False)
    scores = Scores(feed, {"y": beside}, {"y": beside}, {"y": beside}, ())
    found, certain = scores.differs("y", beside[-2:-1], beside[:1])
    assert "column 1" in found and not certain
    for row, factor in ((0, 2e-6), (-1, 2e-4)):
        rows = beside[[row]]
        assert not scores.differs("y", rows * np.float32([1.0, 1.0 + factor]), rows)[0]


def test_a_row_that_is_padded_less_than_its_batch() -> None:
    batch = np.ones([5, 3], np.float32)
    found, certain = difference(batch[:1], batch[:1, :2], batch)
    assert found and not certain


def test_two_calls_are_compared_by_the_floats_behind_an_output() -> None:
    batch = np.ones([3, 1])
    feed = Feed({"x": batch}, "", real=True, serialized=False)
    for precision, varies in (({}, True), ({"y": 4}, False)):
        scores = Scores(feed, {"y": batch}, {"y": batch + 4e-6}, {"y": batch}, (), precision)
        assert bool(scores.varies("y")[0]) is varies


def test_many_columns_are_compared_within_the_seconds_of_probing(check: Check) -> None:
    columns = 20_000

    def serve(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        x = tf.io.parse_example(rows, {"x": tf.io.FixedLenFeature([1], tf.float32)})["x"]
        return {"y": x * tf.ones([1, columns]) + tf.cast(tf.shape(x)[0] > 40, tf.float32)}

    rows = tuple(example(x=float(row)) for row in range(40))
    contract = dataclasses.replace(EVALUATED, examples=rows, probe_s=10.0)
    assert isinstance(contract, ServingContract)
    report = check(serving(serve, SERIALIZED), contract)
    assert [failure.name for failure in report.failures] == ["batch_sizes"], report.summary()
