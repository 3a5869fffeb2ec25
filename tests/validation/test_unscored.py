"""Models that score no row, or not every row alone: what is a failure, and what was not tested."""

import dataclasses
import io
import math
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from rich.console import Console
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_metadata.proto.v0 import schema_pb2

from generic_trainer.validation import ServingContract, ValidationReport, print_report
from generic_trainer.validation._graph import Graph
from generic_trainer.validation._signatures import Signature
from tests.examples import example
from tests.validation import models
from tests.validation.catalogue.rows import export_v1
from tests.validation.conftest import Check
from tests.validation.models import ROWS, SERIALIZED, save, serving
from tests.validation.test_consumers import EVALUATED, SERVED, UNKNOWN, unknown_words_fail

NUMBERS = tf.TensorSpec([None], tf.float32, name="numbers")
INTEGERS = tf.TensorSpec([None], tf.int64, name="integers")
LISTS = dict.fromkeys(("tolls", "extras"), tf.io.VarLenFeature(tf.float32))
# Checks of outputs, and of rows that are made from one that is scored.
OF_OUTPUTS = (
    "scores", "output_per_row", "outputs_finite", "outputs_vary", "deterministic",
    "row_independence", "latency", "eval_rows", "without_optional", "schema_rows", "observed_rows",
    "batch_sizes", "state_growth",
)  # fmt: skip


# Errors that do not depend on the rows.


def never_initialised(folder: Path) -> None:
    def build(v1: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        x = v1.placeholder(tf.float32, [None, 2])
        kept = v1.get_variable("kept", initializer=1.0)
        lost = v1.get_variable("lost", initializer=2.0, collections=["lost"])
        v1.get_default_session().run(lost.initializer)
        return {"x": x}, {"y": x * kept * lost}

    export_v1(folder, build)


def no_kernel(folder: Path) -> None:
    words = tf.TensorSpec([None, 1], tf.string, name="words")
    cast = tf.raw_ops.Cast
    save(serving(lambda words: {"y": cast(x=words, DstT=tf.float32)}, words), folder)


@pytest.mark.parametrize("make", [never_initialised, no_kernel])
@pytest.mark.parametrize("contract", [UNKNOWN, SERVED], ids=["unknown", "served"])
def test_an_error_of_any_row_fails(
    make: Any, contract: ServingContract, check: Check, tmp_path: Path
) -> None:
    make(tmp_path / "model")
    report = check(tmp_path / "model", contract)
    assert report["scores"].status == "fail", report["scores"]
    assert "no request can be answered" in report["scores"].message


def test_a_made_up_word_is_not_the_name_of_a_file(check: Check) -> None:
    module = serving(lambda x: {"y": tf.map_fn(tf.io.read_file, x)[:, None]}, SERIALIZED)
    allowed = dataclasses.replace(SERVED, allowed_ops=("ReadFile",))
    report = check(module, allowed)
    assert report.passed, report.summary()
    assert "NotFoundError" in report["scores"].message


# Made-up rows that a good model refuses.


def keras_2_sparse_and_dense(folder: Path) -> None:
    import tf_keras

    words = tf_keras.Input([4], sparse=True)
    numbers = tf_keras.Input([2])
    hidden = tf_keras.layers.Concatenate()([tf_keras.layers.Dense(3)(words), numbers])
    model = tf_keras.Model([words, numbers], tf_keras.layers.Dense(1)(hidden))
    model.save(str(folder), save_format="tf")


def values_at_different_places(folder: Path) -> None:
    def scatter(numbers: tf.Tensor, integers: tf.Tensor) -> dict[str, tf.Tensor]:
        cells = tf.SparseTensor(integers[:, None], numbers, [9])
        return {"y": tf.sparse.to_dense(cells)[None]}

    save(serving(scatter, NUMBERS, INTEGERS), folder)


def rows_by_their_lengths(folder: Path) -> None:
    def sums(numbers: tf.Tensor, integers: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = tf.RaggedTensor.from_row_lengths(numbers, integers)
        return {"y": tf.reduce_sum(rows, axis=1)}

    save(serving(sums, NUMBERS, INTEGERS), folder)


def words_of_a_vocabulary(folder: Path) -> None:
    save(unknown_words_fail(), folder)


def sparse_input(folder: Path) -> None:
    sparse = tf.SparseTensorSpec([None, 4], tf.float32)
    save(serving(lambda x: {"y": tf.sparse.reduce_sum(x, axis=1)}, sparse), folder)


UNSCORED = (
    keras_2_sparse_and_dense, values_at_different_places, rows_by_their_lengths,
    words_of_a_vocabulary, sparse_input,
)  # fmt: skip


def printed(report: ValidationReport) -> str:
    console = Console(file=io.StringIO(), width=120)
    print_report(report, console)
    return console.file.getvalue().splitlines()[-1]


@pytest.mark.parametrize("make", UNSCORED)
def test_a_model_that_scored_no_row_is_not_just_passed(
    make: Any, check: Check, tmp_path: Path
) -> None:
    make(tmp_path / "model")
    contract = dataclasses.replace(SERVED, schema=schema_pb2.Schema(feature=[{"name": "x"}]))
    report = check(tmp_path / "model", contract)
    assert report.passed, report.summary()
    assert report.facts["rows_scored"] == 0
    assert report.verdict == "passed, but no row was scored"
    assert report.summary().endswith(", but no row was scored")
    skipped = [result.name for result in report.results if result.status == "skip"]
    assert printed(report).startswith("PASSED, but no row was scored, with ")
    assert printed(report).endswith(f", {len(skipped)} not tested")
    for text in (f">{report.verdict}<", f'<b class="skip">{len(skipped)}</b> not tested'):
        assert text in report.to_html()
    for name in OF_OUTPUTS[1:]:
        assert report[name].status == "skip" and report[name].message, report[name]
    assert report["scores"].status in ("skip", "warn")
    if report["scores"].status == "warn":
        assert "may not fit together" in report["scores"].remedy
    assert "without scoring a row" in report["memory"].message
    assert "no row was scored" in report["session"].message


def test_a_check_without_rows_for_it_was_not_made(check: Check, good_model: Path) -> None:
    report = check(good_model, UNKNOWN)
    assert report.facts["rows_scored"] == 32
    assert report.verdict == "passed" and printed(report).startswith("PASSED with 0 warnings, ")
    for name in ("outputs_vary", "without_optional", "schema_rows"):
        assert report[name].status == "skip", report[name]
    for name in ("outputs_finite", "row_independence", "batch_sizes", "unforeseen_rows"):
        assert report[name].status == "pass", report[name]


def test_variables_that_a_session_never_restores_are_found_without_a_row(
    check: Check, tmp_path: Path
) -> None:
    import keras

    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, name="dense")])

    def serve(images: tf.Tensor) -> dict[str, tf.Tensor]:
        known = tf.reduce_all(tf.strings.substr(images, 0, 4) != "text")
        return {"y": model(models.asserted(known, tf.ones([tf.size(images), 1])))}

    function = tf.function(serve, input_signature=[SERIALIZED], autograph=False)
    tf.saved_model.save(model, str(tmp_path / "model"), signatures={"serving_default": function})
    report = check(tmp_path / "model", SERVED)
    assert report.facts["rows_scored"] == 0
    assert [failure.name for failure in report.failures] == ["session"], report.summary()
    assert "dense/kernel" in report["session"].message


# Rows that are scored in a batch, and not alone.


def as_wide_as_the_batch(folder: Path) -> None:
    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        lists = tf.io.parse_example(examples, LISTS).values()
        return {"y": tf.add_n([tf.sparse.to_dense(each) @ [[2.0]] for each in lists])}

    save(serving(serve, SERIALIZED), folder)


def rows_without(*lacking: int) -> list[bytes]:
    lists = [{} if row in lacking else {"tolls": row + 1.0} for row in range(60)]
    return [example(extras=float(row), **more) for row, more in enumerate(lists)]


def schema_of_lists(min_fraction: float) -> schema_pb2.Schema:
    presence = {"min_fraction": min_fraction}
    lists = [{"name": name, "type": 3, "presence": presence} for name in LISTS]
    return schema_pb2.Schema(feature=lists)


@pytest.mark.parametrize("contract", [UNKNOWN, SERVED, EVALUATED], ids=["unknown", "served", "all"])
@pytest.mark.parametrize("row, name", [(2, "scores"), (9, "without_optional"),
                                       (50, "without_optional"), (None, "")])  # fmt: skip
def test_each_example_is_scored_alone(
    row: int | None, name: str, contract: ServingContract, check: Check, tmp_path: Path
) -> None:
    as_wide_as_the_batch(tmp_path / "model")
    rows = rows_without() if row is None else rows_without(row)
    schema = schema_of_lists(1.0)
    report = check(tmp_path / "model", dataclasses.replace(contract, examples=rows, schema=schema))
    assert [failure.name for failure in report.failures] == [name] * bool(name), report.summary()
    for failure in report.failures:
        assert (
            f"example {row} of the sample" in failure.message
            and "lacks ['tolls']" in failure.message
        )
        assert "dense_shape=[batch, 1]" in failure.remedy
        (text,) = report.failing_examples.values()
        assert "extras" in text and "tolls" not in text


def test_a_list_that_only_the_schema_leaves_out_is_a_warning(check: Check, tmp_path: Path) -> None:
    as_wide_as_the_batch(tmp_path / "model")
    optional = dataclasses.replace(SERVED, examples=rows_without(), schema=schema_of_lists(0.9))
    report = check(tmp_path / "model", optional)
    assert report["without_optional"].status == "warn", report["without_optional"]
    assert "without ['tolls'], alone: raises" in report["without_optional"].message


def filled_in(folder: Path, number: str) -> None:
    """A model that replaces missing numbers, some of them by numbers of other rows."""

    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        tolls = tf.io.FixedLenFeature([], tf.float32, math.nan)
        extras = tf.io.FixedLenFeature([], tf.float32, 0.0)
        row = tf.io.parse_example(examples, {"tolls": tolls, "extras": extras})
        tolls, missing = row["tolls"], tf.math.is_nan(row["tolls"])
        known = tf.where(missing, 0.0, tolls)
        places = tf.scan(tf.maximum, tf.where(missing, 0, tf.range(tf.size(tolls))))
        numbers = {
            "a constant": tf.zeros_like(tolls),
            "another feature": row["extras"] / 2,
            "the mean": tf.reduce_mean(known) + tf.zeros_like(tolls),
            "the maximum": tf.reduce_max(known) + tf.zeros_like(tolls),
            "the row before": tf.gather(known, places),
            "the next row": tf.roll(known, -1, 0),
        }
        return {"y": tf.where(missing, numbers[number], tolls)[:, None]}

    save(serving(serve, SERIALIZED), folder)


@pytest.mark.parametrize("row", [9, 50, None])
@pytest.mark.parametrize(
    ("number", "is_of_others"),
    [
        ("a constant", False),
        ("another feature", False),
        ("the mean", True),
        ("the maximum", True),
        ("the row before", True),
        ("the next row", True),
    ],
)
def test_a_missing_value_is_not_that_of_other_rows(
    number: str, is_of_others: bool, row: int | None, check: Check, tmp_path: Path
) -> None:
    filled_in(tmp_path / "model", number)
    rows = rows_without() if row is None else rows_without(row)
    contract = dataclasses.replace(EVALUATED, examples=rows, schema=schema_of_lists(0.9))
    report = check(tmp_path / "model", contract)
    assert report.passed == (not is_of_others), report.summary()
    if is_of_others and row != 9:  # which is among the rows that all checks score
        failure = report["without_optional"]
        assert failure in report.failures, report.summary()
        what = "without ['tolls']" if row is None else f"example {row} of the sample, alone"
        assert what in failure.message and "must not depend on the other rows" in failure.remedy


def squeezes(folder: Path) -> None:
    def serve(examples: tf.Tensor) -> dict[str, tf.Tensor]:
        miles = tf.io.parse_example(examples, models.FEATURES)["miles"]
        return {"y": tf.squeeze(miles)[:, None]}

    save(serving(serve, SERIALIZED), folder)


def test_no_example_is_scored_alone(check: Check, tmp_path: Path) -> None:
    squeezes(tmp_path / "model")
    for contract in (UNKNOWN, SERVED, EVALUATED):
        report = check(
            tmp_path / "model", dataclasses.replace(contract, examples=models.examples())
        )
        assert [failure.name for failure in report.failures] == ["scores"], report.summary()


# Signatures without inputs.


@pytest.mark.parametrize("is_resource", [True, False])
def test_a_counter_that_takes_no_input(is_resource: bool, check: Check, tmp_path: Path) -> None:
    def build(v1: Any) -> dict[str, Any]:
        count = v1.Variable(0.0, use_resource=is_resource)
        delta = v1.placeholder(tf.float32, [])
        read = tf.identity if is_resource else lambda reference: reference
        tensors = {
            "get": ({}, read(count)),
            "increase": ({}, read(v1.assign_add(count, 1.0))),
            "increase_by": ({"delta": delta}, read(v1.assign_add(count, delta))),
            "reset": ({}, read(v1.assign(count, 0.0))),
        }
        info = v1.saved_model.build_tensor_info
        return {
            name: v1.saved_model.build_signature_def(
                {key: info(x) for key, x in inputs.items()},
                {"output": info(output)},
                "tensorflow/serving/predict",
            )
            for name, (inputs, output) in tensors.items()
        }

    export_v1(tmp_path / "model", build)
    report = check(tmp_path / "model", SERVED)
    assert report.passed, report.summary()
    assert report.facts["rows_scored"] == 4
    assert "signature 'get' scored 1 rows of no inputs" in report["scores"].message


def test_a_session_alone_loads_a_model_of_sparse_examples(check: Check, tmp_path: Path) -> None:
    def build(v1: Any) -> dict[str, Any]:
        x = v1.sparse_placeholder(tf.float32, [None, 2])
        weight = v1.Variable([[1.0], [2.0]], use_resource=False)
        y = v1.sparse_tensor_dense_matmul(x, weight)
        info = v1.saved_model.build_tensor_info
        outputs = {"y": info(y), "weight": info(v1.assign(weight, weight))}
        method = "tensorflow/serving/predict"
        signature = v1.saved_model.build_signature_def({"x": info(x)}, outputs, method)
        return {"serving_default": signature}

    export_v1(tmp_path / "model", build)
    report = check(tmp_path / "model", SERVED)
    assert report.passed and "only a session" in report["loads"].message, report.summary()
    assert report.verdict == "passed, but no row was scored"


def test_rows_of_signatures_that_nobody_calls_are_told_from_rows_that_nobody_scored(
    check: Check, tmp_path: Path
) -> None:
    def decoded(images: tf.Tensor) -> dict[str, tf.Tensor]:
        sizes = tf.strings.length(tf.map_fn(tf.io.decode_base64, images))
        return {"sizes": tf.cast(sizes, tf.float32)}

    module = models.linear(tmp_path / "model")
    images = tf.TensorSpec([None], tf.string, name="images")
    functions = models.signatures(serving_default=(decoded, [images]))
    save(module, tmp_path / "model", {**functions, "from_examples": module.serve})
    report = check(tmp_path / "model", UNKNOWN)
    assert "signature 'from_examples' scored" in report["scores"].message
    assert "no row of a signature that consumers call" in report["output_per_row"].message


def test_no_signature_of_a_procedure_is_called(check: Check, tmp_path: Path) -> None:
    module = models.linear(tmp_path / "model")
    functions = models.signatures(name=(lambda: {"name": tf.constant("taxi")}, []))
    save(module, tmp_path / "model", {**functions, "serving_default": module.serve})
    report = check(tmp_path / "model", UNKNOWN)
    assert report.passed, report.summary()
    assert "signature 'name' takes no inputs: not called" in report["scores"].message


def test_a_counter_is_not_compared_with_a_session(check: Check, tmp_path: Path) -> None:
    count = tf.Variable(0.0)

    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x + count}

    def predict(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x * 0.0 + count.assign_add(1.0)}

    functions = models.signatures(predict=(predict, [ROWS]), serving_default=(serve, [ROWS]))
    save(serving(serve, ROWS, count=count), tmp_path / "model", functions)
    report = check(tmp_path / "model", SERVED)
    assert report.passed, report.summary()


# An empty batch, with which some processors' convolutions fail.


@pytest.mark.parametrize(
    ("convolve", "filters"),
    [
        (lambda x, f: tf.nn.conv1d(x, f, 1, "SAME"), [[3, 2, 4], [3, 4, 4]]),
        (lambda x, f: tf.nn.conv2d(x, f, 1, "SAME"), [[3, 3, 2, 4], [3, 3, 4, 4]]),
        (lambda x, f: tf.nn.conv3d(x, f, [1] * 5, "SAME"), [[3, 3, 3, 2, 4], [3, 3, 3, 4, 4]]),
        (
            lambda x, f: tf.nn.depthwise_conv2d(x, f, [1] * 4, "SAME"),
            [[3, 3, 2, 2], [3, 3, 4, 1]],
        ),
    ],
    ids=["conv1d", "conv2d", "conv3d", "depthwise"],
)
def test_a_model_is_not_blamed_for_convolutions_that_take_no_empty_batch(
    convolve: Any, filters: list[list[int]], check: Check
) -> None:
    sides = len(filters[0]) - 2
    image = tf.TensorSpec([None, *[4] * sides, 2], tf.float32, name="image")

    def outputs(image: tf.Tensor) -> dict[str, tf.Tensor]:
        found = image
        for shape in filters:
            found = convolve(found, tf.ones(shape))
        return {"y": tf.reduce_sum(found, axis=list(range(1, sides + 1)))}

    report = check(serving(outputs, image), SERVED)
    assert report["scores"].status == "pass", report["scores"]
    assert report["unforeseen_rows"].status != "warn", report["unforeseen_rows"]


def test_of_signatures_that_compute_the_same_one_is_called(check: Check, tmp_path: Path) -> None:
    factor = tf.Variable(2.0)
    other_factor = tf.Variable(3.0)

    def served(x: tf.Tensor, y: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"sum": x * factor + y, "difference": x * factor - y}

    def swapped(x: tf.Tensor, y: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = served(x, y)
        return {"sum": outputs["difference"], "difference": outputs["sum"]}

    def renamed(u: tf.Tensor, v: tf.Tensor) -> dict[str, tf.Tensor]:
        return served(u, v)

    def of_other_weights(x: tf.Tensor, y: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"sum": x * other_factor + y, "difference": x * other_factor - y}

    numbers = [tf.TensorSpec([None], tf.float32, name) for name in ("x", "y")]
    renamed_numbers = [tf.TensorSpec([None], tf.float32, name) for name in ("u", "v")]
    functions = models.signatures(
        serving_default=(served, numbers),
        swapped=(swapped, numbers),
        renamed=(renamed, renamed_numbers),
        of_other_weights=(of_other_weights, numbers),
    )
    module = tf.Module()
    module.kept = [factor, other_factor]
    save(module, tmp_path / "model", {**functions, "same": functions["serving_default"]})
    message = check(tmp_path / "model", UNKNOWN)["scores"].message
    assert "signature 'same' computes what 'serving_default' does: not called" in message
    for name in ("serving_default", "swapped", "renamed", "of_other_weights"):
        assert f"signature {name!r} scored" in message


def test_looking_for_a_call_changes_no_node() -> None:
    meta_graph = meta_graph_pb2.MetaGraphDef()
    meta_graph.graph_def.node.add(name="sum", op="AddV2")
    meta_graph.signature_def["s"].outputs["y"].name = "sum:0"
    before = meta_graph.SerializeToString(deterministic=True)
    assert Signature(meta_graph.signature_def["s"], Graph(meta_graph)).call is None
    assert meta_graph.SerializeToString(deterministic=True) == before
