"""Good models of every kind pass, without a contract and with one, and without a false alarm."""

from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow_metadata.proto.v0 import schema_pb2

from generic_trainer.validation import ServingContract
from tests.examples import example
from tests.validation import models
from tests.validation.broken_rows import SCHEMA, TRANSFORMED
from tests.validation.conftest import Check
from tests.validation.good import RECIPES
from tests.validation.models import SERIALIZED, serving

CONTRACT = ServingContract(
    examples=models.examples(100),
    schema=SCHEMA,
    transform_graph=TRANSFORMED.transform_graph,
    label_keys=("tips",),
    consumers=("Evaluator",),
)
# Signatures that take tensors instead of serialized examples: said, and no more than that.
TAKE_TENSORS = {
    "keras_2_save", "keras_3_export", "no_variables", "images_in_half_precision",
    "branches_and_loops",
}  # fmt: skip
# Padded to the longest row, so that a row alone has another shape.
PADDED = {"sequences_padded_to_the_longest"}


@pytest.mark.parametrize("name", RECIPES)
def test_passes(name: str, check: Check, tmp_path: Path) -> None:
    make, _ = RECIPES[name]
    make(tmp_path / "model")
    plain = check(tmp_path / "model")
    assert plain.passed, plain.summary()
    allowed = {"row_independence"} if name in PADDED else set()
    assert {result.name for result in plain.warnings} == allowed
    strict = check(tmp_path / "model", CONTRACT)
    assert strict.passed, strict.summary()
    # An Evaluator feeds inputs by the names of features, which these are not.
    expected = {"serialized_input", "schema_features"} if name in TAKE_TENSORS else set()
    assert {result.name for result in strict.warnings} - {"row_independence"} == expected


def _paired(x: tf.Tensor) -> dict[str, tf.Tensor]:
    lists = {"ids": tf.io.RaggedFeature(tf.int64), "weights": tf.io.RaggedFeature(tf.float32)}
    cells = {"cells": tf.io.SparseFeature("at", "of", tf.float32, 9)}
    parsed = tf.io.parse_example(x, {**lists, **cells})
    y = tf.reduce_sum(tf.cast(parsed["ids"], tf.float32) * parsed["weights"], axis=1)
    return {"y": y + tf.sparse.reduce_sum(parsed["cells"], axis=1), "wave": tf.complex(y, y)}


CELLS = {"name": "cells", "index_feature": [{"name": "at"}], "value_feature": {"name": "of"}}
TYPES = {"ids": 2, "weights": 3, "at": 2, "of": 3}  # of integers, and of floats
NUMBERS = [{"name": n, "type": t, "value_count": {"min": 1, "max": 5}} for n, t in TYPES.items()]
LISTS = schema_pb2.Schema(sparse_feature=[CELLS], feature=NUMBERS)
LISTS.feature[2].int_domain.max = 8


def test_lists_that_belong_together_change_together(check: Check) -> None:
    some = [list(range(2 + row % 3)) for row in range(40)]
    rows = [example(ids=n, weights=[0.5] * len(n), at=n, of=[1.0] * len(n)) for n in some]
    wanted = ServingContract(examples=rows, schema=LISTS, consumers=("Evaluator",), signatures=())
    report = check(serving(_paired, SERIALIZED), wanted)
    assert report.passed and len(report.warnings) == 1, (report.summary(), report.warnings)


def test_a_scalar_and_words_of_any_number_are_not_fed_from_examples(check: Check) -> None:
    words = tf.TensorSpec([None, None], tf.string, name="words")
    specs = words, tf.TensorSpec([], tf.float32, name="scale")
    rows = [example(words=["no"] * (1 + row % 3), scale=2.0) for row in range(40)]
    module = serving(lambda x, scale: {"y": tf.ones_like(x, tf.float32)[:, :1] * scale}, *specs)
    report = check(module, ServingContract(examples=rows, consumers=("Pusher",)))
    assert report["scores"].status == "pass", report["scores"]
