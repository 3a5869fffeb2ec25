"""Good models of every kind pass, without a contract and with one, and without a false alarm."""

import itertools
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
# Signatures that take a text, which an Evaluator without a config gives serialized examples.
TAKE_TEXT = {
    "text_classifier", "vocabulary_in_records", "reads_its_own_asset", "cached_in_memory",
    "sequences_padded_to_the_longest",
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
    expected = {"schema_features", "scores"} if name in TAKE_TENSORS else set()
    expected |= {"eval_signatures"} if name in TAKE_TENSORS | TAKE_TEXT else set()
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


@pytest.mark.parametrize("order", [("own", "of_graph"), ("of_graph", "own")])
def test_a_file_of_its_own_with_the_name_of_a_vocabulary(
    order: tuple[str, str], check: Check, tmp_path: Path
) -> None:
    """TensorFlow numbers the second one."""
    (there,) = (Path(str(TRANSFORMED.transform_graph)) / "transform_fn" / "assets").iterdir()
    words = {"own": "b\na\n", "of_graph": there.read_text()}
    module = tf.Module()
    for number, name in enumerate(order):
        (tmp_path / name).mkdir()
        asset = models.asset(tmp_path / name / there.name, words[name])
        setattr(module, f"table_{number}", tf.lookup.StaticHashTable(models.lines_of(asset), -1))
        setattr(module, f"asset_{number}", asset)

    def serve(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        word = tf.io.parse_example(rows, models.FEATURES)["payment"]
        return {"y": module.table_0.lookup(word), "z": module.table_1.lookup(word)}

    module.serve = tf.function(serve, input_signature=[SERIALIZED], autograph=False)
    report = check(module, CONTRACT)
    assert {file.name for file in (tmp_path / "model" / "assets").iterdir()} > {there.name}
    assert report["vocabularies"].status == "pass", report["vocabularies"]


_PARTS = tf.io.RaggedFeature
# How rows of lists, such as [[1.0, 2.0], [3.0]], are divided → the partitions, and the integers.
NESTED = {
    "lengths": ([_PARTS.RowLengths("parts")], lambda sizes: sizes),
    "splits": ([_PARTS.RowSplits("parts")], lambda sizes: [0, *itertools.accumulate(sizes)]),
    "limits": ([_PARTS.RowLimits("parts")], lambda sizes: [*itertools.accumulate(sizes)]),
    "ids": (
        [_PARTS.ValueRowIds("parts")],
        lambda sizes: [row for row, size in enumerate(sizes) for _ in range(size)],
    ),
    "two_levels": ([_PARTS.RowLengths("outer"), _PARTS.RowLengths("parts")], lambda sizes: sizes),
    "one_row": ([_PARTS.RowLengths("parts")], lambda sizes: [sum(sizes)]),
}


@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("has_examples", [True, False])
def test_nested_lists_change_together(kind: str, has_examples: bool, check: Check) -> None:
    partitions, integers = NESTED[kind]
    spec = {"nested": _PARTS(tf.float32, value_key="of", partitions=partitions, validate=True)}

    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        flat = tf.io.parse_example(examples, spec)["nested"].merge_dims(1, -1)
        return {"y": tf.reduce_sum(flat, axis=1)}

    rows = []
    for row in range(40):
        sizes = [1 + (row + part) % 3 for part in range(1 + row % 3)]
        lists = {"parts": integers(sizes), "outer": [len(sizes)]}
        rows.append(example(of=[0.5] * sum(sizes), **lists))
    features = [
        {"name": name, "type": kind, "value_count": {"min": 1, "max": 99}}
        for name, kind in {"of": 3, "parts": 2, "outer": 2}.items()
    ]
    schema = schema_pb2.Schema(feature=features)
    schema.feature[1].int_domain.max = 9
    contract = ServingContract(
        examples=rows if has_examples else None, schema=schema, signatures=()
    )
    report = check(serving(serve, SERIALIZED), contract)
    assert report.passed, report.summary()
    # Made-up examples do not fit together, so that a warning is all that they are good for.
    assert not (has_examples and report.warnings), report.warnings


def test_a_scalar_and_words_of_any_number_are_not_fed_from_examples(check: Check) -> None:
    words = tf.TensorSpec([None, None], tf.string, name="words")
    specs = words, tf.TensorSpec([], tf.float32, name="scale")
    rows = [example(words=["no"] * (1 + row % 3), scale=2.0) for row in range(40)]
    module = serving(lambda x, scale: {"y": tf.ones_like(x, tf.float32)[:, :1] * scale}, *specs)
    report = check(module, ServingContract(examples=rows, consumers=("Pusher",)))
    assert report.passed and "'scale'" in report["scores"].message, report["scores"]
