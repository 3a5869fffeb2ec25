"""Predictions compared with the best constant answer."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from generic_trainer.validation import ServingContract, ValidationReport
from generic_trainer.validation._predictions import predictions_of
from tests.examples import example
from tests.validation.conftest import Check
from tests.validation.models import SERIALIZED, serving

ERROR, ACCURACY = "mean_absolute_error", "accuracy"
Answer = Callable[[Any], Any]


def make(answer: Answer) -> Callable[[], tf.Module]:
    spec = {"x": tf.io.FixedLenFeature([], tf.float32)}

    def serve(examples: Any) -> dict[str, Any]:
        found = answer(tf.io.parse_example(examples, spec)["x"])
        return found if isinstance(found, dict) else {"y": found}

    return lambda: serving(serve, SERIALIZED)


def contract(label: Callable[[int], Any], rows: int = 300, **fields: Any) -> ServingContract:
    """Returns a contract of examples `x` = 0, 1, 2, ... and their labels."""
    values = [label(row) for row in range(rows)]
    examples = [
        example(x=float(row), **({} if value is None else {"label": value}))
        for row, value in enumerate(values)
    ]
    fields = {"label_keys": ("label",), "examples": tuple(examples), **fields}
    return ServingContract(signatures=(), **fields)


def word(x: Any) -> Any:
    return tf.where(x < 200, "cheap", "dear")


# Case → answer, label, status, metric, its value, that of the constant answer.
CASES = {
    "numbers": (lambda x: x + 1, float, "pass", ERROR, 1.0, 75.0),
    "numbers far off": (lambda x: x + 500, float, "warn", ERROR, 500.0, 75.0),
    "column of numbers, labels are integers": (
        lambda x: x[:, None] - 100, int, "warn", ERROR, 100.0, 75.0,
    ),
    "the mean itself": (lambda x: 0 * x + 149.5, float, "pass", ERROR, 75.0, 75.0),
    "worse than the median alone, as many labels are 0": (
        lambda x: 0 * x + 100, lambda row: 300.0 * (row < 100), "pass", ERROR, 400 / 3, 100.0,
    ),
    "probabilities": (
        lambda x: tf.where(x < 100, 0.9, 0.2), lambda row: int(row < 90), "pass", ACCURACY,
        290 / 300, 0.7,
    ),
    "rare class": (
        lambda x: tf.where(x < 100, 0.9, 0.2), lambda row: float(row < 9), "warn", ACCURACY,
        209 / 300, 0.97,
    ),
    "always the frequent class": (
        lambda x: 0 * tf.cast(x, tf.int32), lambda row: int(row < 10), "warn", ACCURACY,
        290 / 300, 290 / 300,
    ),
    "always the frequent class, the others are few": (
        lambda x: 0 * tf.cast(x, tf.int32), lambda row: int(row < 9), "pass", ACCURACY, 0.97, 0.97,
    ),
    "always the frequent class, by probabilities": (
        lambda x: 0.1 + x / 1000, lambda row: int(row > 200), "pass", ACCURACY, 0.67, 0.67,
    ),
    "always the only class": (
        lambda x: 0 * tf.cast(x, tf.int32), lambda _: 0, "pass", ACCURACY, 1.0, 1.0,
    ),
    "scores of classes": (
        lambda x: tf.one_hot(tf.cast(x, tf.int32) % 3, 3) - 5, lambda row: row % 3, "pass",
        ACCURACY, 1.0, 1 / 3,
    ),
    "classes": (lambda x: tf.cast(x, tf.int32) % 3, lambda _: 1, "warn", ACCURACY, 1 / 3, 1.0),
    "words": (word, lambda row: "cheap" if row < 150 else "dear", "pass", ACCURACY, 250 / 300, 0.5),
    "output with the label's name": (
        lambda x: {"label": word(x), "probabilities": tf.one_hot(tf.cast(x > 9, tf.int32), 2)},
        lambda _: "dear", "warn", ACCURACY, 1 / 3, 1.0,
    ),
    "output with the label's name, beside lists as wide as the longest of the batch": (
        lambda x: {"label": x + 1, "ids": tf.ragged.range(x // 9).to_tensor()},
        float, "pass", ERROR, 1.0, 75.0,
    ),
    "examples without a label": (
        lambda x: x, lambda row: float(row) if row % 2 else None, "pass", ERROR, 0.0, 75.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_worse_than_a_constant_is_a_warning(case: str, check: Check) -> None:
    answer, label, status, metric, value, constant = CASES[case]
    report = check(make(answer)(), contract(label))
    assert report["beats_constant"].status == status, report["beats_constant"]
    assert report.facts[f"eval_{metric}"] == pytest.approx(value, abs=1e-4)
    assert report.facts[f"constant_{metric}"] == pytest.approx(constant, abs=1e-4)
    is_one_class = case.startswith("always the frequent")
    assert ("; every answer is 0" in report.summary()) == is_one_class
    assert report.passed and f"on {150 if 'without' in case else 300} eval" in report.summary()


def test_examples_sorted_by_their_label_give_the_accuracy_of_all(check: Check) -> None:
    answer = make(lambda x: tf.where(x < 1000, 0.9, 0.2))
    report = check(answer(), contract(lambda row: int(row < 1200), 2000))
    assert report["beats_constant"].status == "pass" and "on 1000 eval" in report.summary()
    assert report.facts[f"eval_{ACCURACY}"] == pytest.approx(0.9, abs=0.03)
    assert report.facts[f"constant_{ACCURACY}"] == pytest.approx(0.6, abs=0.03)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_labels_that_are_not_finite_are_named(value: float, check: Check) -> None:
    labels = contract(lambda row: value if row == 7 else float(row))
    found = check(make(lambda x: x)(), labels)["beats_constant"]
    assert found.status == "warn"
    assert f"the label is {value} in 1 of 300 eval examples" in found.message


def test_time_is_left_where_other_checks_take_theirs(check: Check) -> None:
    def slow(x: Any) -> Any:  # some milliseconds for each row
        steps = 1000 * tf.size(x)
        [counted] = tf.while_loop(lambda step: step < steps, lambda step: step + 1, [0])
        return x + 500 + tf.cast(counted - steps, tf.float32)

    report = check(make(slow)(), contract(float, probe_s=1.0))
    assert report["beats_constant"].status == "warn", report["beats_constant"]
    assert report.facts[f"constant_{ERROR}"] > 0


SKIPPED = {
    "no label": (lambda x: x, {"label_keys": ()}),
    "two outputs": (lambda x: {"a": x, "b": x}, {}),
    "logits": (lambda x: x - 3, {"label": lambda row: row % 2}),
    "margins": (lambda x: x - 3, {"label": lambda row: 2 * (row > 3) - 1}),
    "embeddings": (
        lambda x: tf.math.sin(x[:, None] * tf.range(1.0, 17.0)),
        {"label": lambda row: row % 3},
    ),
    "sets of classes": (
        lambda x: tf.stack([x, -x, x], 1),
        {"label": lambda row: [1, row % 2] if row % 3 else 2},
    ),
    "words for numbers": (word, {}),
    "numbers for words": (lambda x: x, {"label": str}),
    "class beyond the scores": (lambda x: tf.stack([x, x], 1), {"label": int}),
    "NaN": (lambda x: tf.math.log(-x), {}),
    "lists as wide as the longest of the batch": (
        lambda x: tf.ragged.range(x // 9).to_tensor(),
        {},
    ),
    "no time": (lambda x: x + 500, {"probe_s": 0}),
    "an example raises": (lambda x: tf.debugging.check_numerics(1 / (x - 99), "x"), {}),
}


@pytest.mark.parametrize("case", SKIPPED)
def test_what_cannot_be_compared_is_not_judged(case: str, check: Check) -> None:
    answer, fields = SKIPPED[case]
    fields = dict(fields)
    report = check(make(answer)(), contract(fields.pop("label", float), **fields))
    assert report["beats_constant"].status == "skip", report["beats_constant"]
    assert "quality" not in report.facts and "Predictions of" not in report.to_html()


# Case of `CASES` → names of the classes and counts of the confusion matrix.
MATRICES = {
    "probabilities": (["0", "1"], [[200, 10], [0, 90]]),
    "scores of classes": (["0", "1", "2"], [[100, 0, 0], [0, 100, 0], [0, 0, 100]]),
    "classes": (["0", "1", "2"], [[0, 0, 0], [100, 100, 100], [0, 0, 0]]),
    "words": (["cheap", "dear"], [[150, 0], [50, 100]]),
    "numbers": ([], []),
}


@pytest.mark.parametrize("case", MATRICES)
def test_report_has_predictions_beside_their_labels(case: str, check: Check) -> None:
    answer, label, *_ = CASES[case]
    report = check(make(answer)(), contract(label))
    shown = predictions_of(report.facts)
    assert shown is not None and len(shown.rows) == 10 and shown.label == "label"
    names = [name for name, _ in shown.matrix]
    assert (names, [[n for n, _ in row] for _, row in shown.matrix]) == MATRICES[case]
    if shown.scatter:
        assert [text for _, _, text in shown.scatter["points"]][3] == "3, predicted 4"
        assert shown.rows[3] == ("90", "91")
    assert (shown.scatter is None) == bool(names)
    assert "Predictions of label" in report.to_html()
    assert ValidationReport.from_json(report.to_json()) == report


def test_few_examples_are_no_reason_to_warn(check: Check) -> None:
    report = check(make(lambda x: x + 500)(), contract(float, rows=9))
    assert report["beats_constant"].status == "pass"
    assert "mean absolute error 500 on 9 eval examples" in report["beats_constant"].message
