"""Rows that are made up, because no examples are named or none fit: what they can prove."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from generic_trainer.validation import ServingContract
from tests.examples import example
from tests.validation import models
from tests.validation.conftest import Check
from tests.validation.models import ROWS, serving
from tests.validation.test_consumers import EVALUATED, SERVED, UNKNOWN

NAMED = dataclasses.replace(EVALUATED, signatures=("infer",))
SEQUENCE = tf.TensorSpec([None, None], tf.float32, name="x")


# Dimensions of unknown size, beside the rows.


def convolved(*sides: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the mean of convolutions without padding, one after the other, of these widths."""

    def convolve(x: tf.Tensor) -> tf.Tensor:
        dims = x.shape.rank - 2
        for side in sides:
            x = tf.nn.convolution(x, tf.ones([side] * dims + [x.shape[-1], 2]), strides=2)
        return tf.reduce_mean(x, range(1, dims + 1))

    return convolve


@pytest.mark.parametrize(
    ("function", "shape", "dtype"),
    [
        (convolved(3, 3, 7), [None, None, 3], tf.float32),
        (convolved(7), [None, 2], tf.float32),
        (convolved(3), [None, None, None, 1], tf.float32),
        (lambda x: convolved(5, 5)(tf.one_hot(x, 9)), [None], tf.int64),
        (lambda x: tf.reduce_mean(tf.ensure_shape(x, [None, None, None, 3]), [1, 2]),
         [None] * 3, tf.float32),
        (lambda x: tf.gather(tf.range(1.0, 21.0), tf.range(tf.shape(x)[1]))[None] * x,
         [None], tf.float32),
    ],
    ids=["image", "sequence", "volume", "words", "channels", "places"],
)  # fmt: skip
def test_dimensions_of_any_size_are_large_enough(
    function: Any, shape: list[Any], dtype: Any, check: Check
) -> None:
    module = serving(lambda x: {"y": function(x)}, tf.TensorSpec([None, *shape], dtype, name="x"))
    report = check(module, EVALUATED)
    assert report.verdict == "passed" and not report.warnings, (report.summary(), report.warnings)
    assert report.facts["rows_scored"] == 32


def test_rows_that_are_large_are_few(check: Check) -> None:
    volume = tf.TensorSpec([None, 96, 96, 96, 1], tf.float32, name="x")
    label = tf.TensorSpec([None], tf.float32, name="scale")
    module = serving(lambda x, scale: {"y": scale * tf.reduce_mean(x, [1, 2, 3, 4])}, volume, label)
    report = check(module, EVALUATED)
    assert report.passed and report.facts["rows_scored"] == 8, report.summary()


def of_its_batch(x: tf.Tensor) -> tf.Tensor:
    return x - tf.reduce_mean(x, 0)


def at_random(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.dropout(x, 0.5)


@pytest.mark.parametrize(
    ("name", "function"), [("row_independence", of_its_batch), ("deterministic", at_random)]
)
@pytest.mark.parametrize("kind", ["made up", "tiny", "of a known size", "of examples"])
def test_tiny_rows_are_no_proof(name: str, function: Any, kind: str, check: Check) -> None:
    rows = [example(x=[0.25 * row, 1.0, row % 3]) for row in range(40)]
    contract = dataclasses.replace(EVALUATED, examples=rows) if kind == "of examples" else EVALUATED
    spec = tf.TensorSpec([None, 3], name="x") if kind == "of a known size" else SEQUENCE

    def outputs(x: tf.Tensor) -> dict[str, tf.Tensor]:
        if kind == "tiny":
            tf.debugging.assert_less(tf.shape(x)[1], 9)
        return {"y": function(x)}

    result = check(serving(outputs, spec), contract)[name]
    assert result.status == ("warn" if kind == "tiny" else "fail"), result


# Examples that fit no signature.


@pytest.mark.parametrize(
    ("spec", "of"),
    [
        (ROWS, {"wrong": [1.0, 2.0]}),
        (ROWS, {"x": [1, 2]}),
        (ROWS, {"x": [1.0, 2.0, 3.0]}),
        (tf.TensorSpec([None, None, None, 3], name="x"), {"x": [0.5] * 48}),
    ],
    ids=["name", "dtype", "size", "two free dimensions"],
)
def test_examples_that_fit_no_input_are_named(
    spec: tf.TensorSpec, of: dict[str, Any], check: Check
) -> None:
    module = serving(lambda x: {"y": tf.reduce_mean(x, range(1, len(x.shape)))}, spec)
    contract = dataclasses.replace(SERVED, examples=[example(**of)] * 4)
    result = check(module, contract)["scores"]
    assert result.status == "warn" and "input 'x', float32[" in result.message, result
    assert ("they have ['wrong']" in result.message) == ("wrong" in of), result


def test_examples_of_lists_of_different_lengths_are_told_to_pad(check: Check) -> None:
    tokens = tf.TensorSpec([None, None], tf.int64, name="tokens")
    module = serving(lambda tokens: {"y": tf.reduce_sum(tokens, 1)}, tokens)
    rows = [example(tokens=[1] * length) for length in (1, 2, 7)]
    result = check(module, dataclasses.replace(SERVED, examples=rows))["scores"]
    assert result.status == "warn" and "different lengths, 1 to 7 values" in result.message, result
    assert "pad lists" in result.remedy


def test_examples_that_one_signature_takes_are_enough(check: Check, tmp_path: Any) -> None:
    module = models.linear(tmp_path / "model")
    functions = models.signatures(raw=(lambda x: {"y": x}, [ROWS]))
    models.save(module, tmp_path / "model", {"serving_default": module.serve, **functions})
    both = dataclasses.replace(SERVED, signatures=("serving_default", "raw"))
    report = check(tmp_path / "model", dataclasses.replace(both, examples=models.examples()))
    assert report["scores"].status == "pass", report["scores"]


def test_a_model_that_refuses_made_up_rows_is_told_why_the_examples_do_not_fit(
    check: Check,
) -> None:
    module = serving(lambda x: {"y": models.asserted(tf.reduce_all(x > 1.0), x)}, ROWS)
    rows = [example(wrong=[2.0, 3.0])]
    result = check(module, dataclasses.replace(SERVED, examples=rows))["scores"]
    assert result.status == "warn" and "they have ['wrong']" in result.message, result
    assert "ServingContract(examples" not in result.remedy


# A declared shape that the rows contradict.


def declared(x: tf.Tensor, rows: int = 1) -> tf.Tensor:
    y = x * 2.0
    y.set_shape([rows, 2])
    return y


@pytest.mark.parametrize("contract", [UNKNOWN, EVALUATED], ids=["unknown", "evaluated"])
def test_a_wrong_declared_shape_is_a_warning_if_each_row_has_an_output(
    contract: ServingContract, check: Check
) -> None:
    report = check(serving(lambda x: {"y": declared(x)}, ROWS), contract)
    assert report.passed and report["output_shape"].status == "warn", report.summary()
    assert report["output_per_row"].status == "pass"


@pytest.mark.parametrize(
    "function",
    [lambda x: declared(tf.pad(x, [[0, 32], [0, 0]])[: tf.size(x) * 0 + 32], 32),
     lambda x: declared(x[:1]),
     lambda x: declared(models.asserted(tf.reduce_all(x > 1.0), x))],
    ids=["as many as are made up", "one", "unscored"],
)  # fmt: skip
def test_a_declared_shape_without_rows_for_each_example_fails(function: Any, check: Check) -> None:
    report = check(serving(lambda x: {"y": function(x)}, ROWS), EVALUATED)
    assert report["output_shape"].status == "fail", report["output_shape"]


# Signatures that change what others compute with.


@pytest.mark.parametrize("of_examples", [True, False])
@pytest.mark.parametrize("name", ["a_train", "train"])
def test_a_training_step_is_not_taken_for_a_dependence_on_the_batch(
    name: str, of_examples: bool, check: Check, tmp_path: Any
) -> None:
    weight = tf.Variable([[1.0], [2.0]])

    def infer(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x @ weight}

    def train(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"loss": models.after(weight.assign_add(tf.ones([2, 1])), x[:, :1])}

    functions = models.signatures(infer=(infer, [ROWS]), **{name: (train, [ROWS])})
    models.save(serving(infer, ROWS, weight=weight), tmp_path / "model", functions)
    rows = [example(x=[0.5 * row, 1.0]) for row in range(100)] if of_examples else None
    contract = dataclasses.replace(NAMED, signatures=("infer", name), examples=rows)
    report = check(tmp_path / "model", contract)
    for result in (*report.warnings, *report.failures):
        assert "'infer'" not in result.message, result


# Who calls a signature with one string.


@pytest.mark.parametrize(
    ("consumers", "status"),
    [("", "warn"), ("Pusher", "pass"), ("Evaluator", "pass"), ("InfraValidator", "warn"),
     ("BulkInferrer", "fail")],
)  # fmt: skip
def test_a_dense_input_matters_to_those_who_send_strings(
    consumers: str, status: str, check: Check
) -> None:
    contract = ServingContract(consumers=tuple(consumers.split()))
    module = serving(lambda x: {"y": x}, ROWS)
    assert check(module, contract)["serialized_input"].status == status
