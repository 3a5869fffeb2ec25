"""Large ids that a model makes so narrow that different ones become one."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from tests.examples import example
from tests.validation.conftest import Check
from tests.validation.models import SERIALIZED, serving
from tests.validation.recipes import EVALUATED

LARGE = np.random.default_rng(5).integers(1 << 33, 5_000_000_000_000, 60)
SMALL = np.arange(60) * 31
TIMES = 1_700_000_000 + np.random.default_rng(6).integers(0, 1 << 24, 60)
ROUNDS = "rounds to float32 feature 'id'"
DROPS = "drops the upper 32 bits of feature 'id'"


def bucket(ids: tf.Tensor, buckets: int = 97) -> tf.Tensor:
    """Returns a number as an embedding has it for each id."""
    words = tf.strings.as_string(ids)
    return tf.cast(tf.strings.to_hash_bucket_fast(words, buckets), tf.float32)


def as_float(ids: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.cast(ids, tf.float32), tf.int64)


MODELS: dict[str, tuple[Callable[[tf.Tensor], tf.Tensor], np.ndarray, str]] = {
    "cast to int32": (lambda x: bucket(tf.cast(x, tf.int32)), LARGE, DROPS),
    "remainder as int32": (lambda x: tf.cast(tf.cast(x, tf.int32) % 97, tf.float32), LARGE, DROPS),
    "cast to float32": (lambda x: bucket(as_float(x)), LARGE, ROUNDS),
    "text of a float": (lambda x: bucket(tf.cast(x, tf.float32)), LARGE, ROUNDS),
    "classes": (lambda x: as_float(x) // 8 % 97, LARGE, ROUNDS),
    # What large integers are for.
    "hashed": (bucket, LARGE, ""),
    "remainder": (lambda x: tf.cast(x % 97, tf.float32), LARGE, ""),
    "remainder of a power of two": (lambda x: tf.cast(x % 1024, tf.float32), LARGE, ""),
    "remainder of a power of two as int32": (
        lambda x: tf.cast(tf.cast(x, tf.int32) & 1023, tf.float32), LARGE, "",
    ),
    "folded": (
        lambda x: bucket(tf.cast(x, tf.int32) ^ tf.cast(tf.bitwise.right_shift(x, 32), tf.int32)),
        LARGE, "",
    ),
    "quotient": (lambda x: bucket(x // 4096), LARGE, ""),
    "quotient of a thousand": (lambda x: bucket(x // 1000), LARGE, ""),
    "number": (lambda x: tf.cast(x, tf.float32) * 1e-12, LARGE, ""),
    "logarithm": (lambda x: tf.math.log(tf.cast(x, tf.float32)), LARGE, ""),
    "day of the week": (lambda x: tf.cast(x // 86400 % 7, tf.float32), TIMES, ""),
    "days": (lambda x: tf.cast(x, tf.float32) / 86400.0, TIMES, ""),
    "small as int32": (lambda x: bucket(tf.cast(x, tf.int32)), SMALL, ""),
    "small as float32": (lambda x: bucket(tf.cast(x, tf.float32)), SMALL, ""),
    "not read": (lambda x: tf.cast(tf.zeros_like(x), tf.float32), LARGE, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_ids_that_lose_bits(name: str, check: Check) -> None:
    function, ids, told = MODELS[name]
    spec = {
        "id": tf.io.FixedLenFeature([], tf.int64),
        "other": tf.io.FixedLenFeature([], tf.float32),
    }

    def serve(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = tf.io.parse_example(rows, spec)
        found = function(parsed["id"])
        return {"y": found + tf.cast(parsed["other"], found.dtype)}

    examples = tuple(example(id=int(x), other=0.01 * n) for n, x in enumerate(ids))
    contract = dataclasses.replace(EVALUATED, examples=examples)
    result = check(serving(serve, SERIALIZED), contract)["unforeseen_rows"]
    assert (result.status == "warn") == bool(told), result
    assert told in result.message
