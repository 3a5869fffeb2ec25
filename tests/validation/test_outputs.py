"""Outputs of other rows, of half precision, padded, of text; weights and state behind them."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer import training
from generic_trainer.validation import ServingContract
from tests.examples import example
from tests.validation.conftest import Check
from tests.validation.good import SERVED, TEXT
from tests.validation.models import ROWS, SERIALIZED, after, serving
from tests.validation.recipes import EVALUATED, EVALUATED_EXAMPLES, scoring

Make = Callable[[], tf.Module]
NAN = float("nan")
NO_SERVER = ServingContract(signatures=(), consumers=("Evaluator",))


def computing(function: Callable[..., Any], *specs: tf.TensorSpec, **tracked: Any) -> Make:
    """What makes a module that computes `y`, or several outputs; `tracked` make its variables."""

    def make() -> tf.Module:
        has = {name: value() for name, value in tracked.items()}

        def outputs(x: tf.Tensor) -> dict[str, Any]:
            found = function(x, **has)
            return found if isinstance(found, dict) else {"y": found}

        return serving(outputs, *(specs or (ROWS,)), **has)

    return make


def halved(x: tf.Tensor, dtype: Any = tf.bfloat16) -> tf.Tensor:
    """Computes in half precision; rows differ by less than it tells apart in a row alone."""
    return tf.cast(tf.cast(x, dtype) * tf.constant(0.02, dtype) + tf.constant(0.5, dtype), x.dtype)


def rolled(x: tf.Tensor) -> tf.Tensor:
    return tf.roll(x, 1, axis=0)


def table() -> tf.Variable:
    return tf.Variable(tf.cast(tf.random.stateless_normal([9, 2], [1, 2]) * 0.01, tf.float16))


def looked_up(x: tf.Tensor, table: Any) -> tf.Tensor:
    return 0.5 + tf.cast(tf.gather(table, tf.cast(x[:, 0] * 9, tf.int32)), tf.float32)


def beside(x: tf.Tensor) -> tf.Tensor:
    """No output depends on its half precision; the mean of the batch leaks."""
    halved(x)
    return 0.5 + 0.01 * (x - tf.reduce_mean(x, axis=0))


@pytest.fixture(autouse=True)
def keras_2_unconverted() -> Iterator[None]:
    """AutoGraph would convert the code of Keras 2, which takes seconds."""
    with training.keras_2_unconverted():
        yield


def serving_keras(
    model: Any, function: Callable[..., tf.Tensor], spec: tf.TensorSpec = ROWS
) -> tf.Module:
    """Serves a model or layer of any Keras; a checkpoint does not track Keras 3's own variables."""
    tracked = [v if isinstance(v, tf.Variable) else v.value for v in model.variables]
    return serving(lambda x: {"y": function(x)}, spec, model=model, tracked=tracked)


def of_keras(name: str, policy: str, mix: Callable[[tf.Tensor], tf.Tensor] = tf.identity) -> Make:
    """What makes a network of a Keras with this policy; `mix` gets its outputs."""

    def make() -> tf.Module:
        keras: Any = pytest.importorskip(name)
        keras.utils.set_random_seed(3)
        layers, options = keras.layers, {"dtype": policy}
        network = keras.Sequential([
            keras.Input([2]), layers.Dense(32, "relu", **options),
            layers.BatchNormalization(**options), layers.Dense(1, "sigmoid", dtype="float32"),
        ])  # fmt: skip
        return serving_keras(network, lambda x: mix(network(x, training=False)))

    return make


def stateful(name: str) -> Make:
    def make() -> tf.Module:
        keras: Any = pytest.importorskip(name)
        inputs = keras.Input(batch_shape=(4, 3, 2))
        network = keras.Model(inputs, keras.layers.LSTM(3, stateful=True, name="memory")(inputs))
        spec = tf.TensorSpec([4, 3, 2], tf.float32, name="x")
        module = serving_keras(network, network, spec)
        # Keras 3 does not list them among the model's variables.
        module.states = [getattr(each, "value", each) for each in network.layers[-1].states]
        return module

    return make


def dropping(name: str) -> Make:
    def make() -> tf.Module:
        keras: Any = pytest.importorskip(name)
        dropout = keras.layers.Dropout(0.5)
        return serving_keras(dropout, lambda x: dropout(x, training=True))

    return make


def letters(text: tf.Tensor) -> tf.RaggedTensor:
    """Returns lists of different lengths, one for each text of "text 0", "text 1", ..."""
    found = tf.strings.unicode_decode(text, "UTF-8")
    return found[:, : tf.reduce_max(found.row_lengths())]


def padded(text: tf.Tensor) -> tf.Tensor:
    return tf.cast(letters(text).to_tensor(0), tf.float32) / 100.0


def padded_in_front(text: tf.Tensor) -> tf.Tensor:
    return tf.reverse(padded(tf.strings.reduce_join(letters_of(text)[:, ::-1], axis=1)), [1])


def letters_of(text: tf.Tensor) -> tf.RaggedTensor:
    return tf.strings.unicode_split(text, "UTF-8")


def mixed_from_row_2_on(y: tf.Tensor) -> tf.Tensor:
    return tf.concat([y[:2], rolled(y[2:])], axis=0)


def weights(value: float = NAN) -> np.ndarray:
    return np.array([[1.0, 2.0], [value, 3.0]], np.float32)


def imputed(examples: tf.Tensor) -> dict[str, tf.Tensor]:
    miles = tf.io.FixedLenFeature([2], tf.float32, default_value=[NAN, NAN])
    x = tf.io.parse_example(examples, {"miles": miles})["miles"]
    return {"y": tf.where(tf.math.is_nan(x), [0.5, 1.5], x)}


def masked(x: tf.Tensor) -> tf.Tensor:
    attention = tf.nn.softmax(x[:, None] + tf.constant([[0.0, -np.inf], [0.0, 0.0]]))
    return tf.matmul(attention, x[:, :, None])[..., 0]


def frozen_by_keras() -> tf.Module:
    """The weights of a network whose training diverged, as constants in functions."""
    from tensorflow.python.framework import convert_to_constants

    kernel, bias = tf.Variable(weights()), tf.Variable([0.5, NAN])
    function = tf.function(lambda x: tf.argmax(tf.nn.bias_add(x @ kernel, bias), axis=1), [ROWS])
    frozen = convert_to_constants.convert_variables_to_constants_v2(
        function.get_concrete_function()
    )
    return serving(lambda x: {"y": frozen(x)[0]}, ROWS)


def image(x: tf.Tensor) -> tf.Tensor:
    pixels = tf.cast(x[:, :, None, None] * 255.0, tf.uint8)
    return tf.map_fn(tf.io.encode_png, pixels, fn_output_signature=tf.string)


OTHERS, LEAK = "rows in another order have outputs of other rows", " alone gives"
ROWS_OF = "row_independence"
FINDINGS: dict[str, tuple[Make, ServingContract, str, str, str]] = {
    # Half precision.
    "rolled": (computing(lambda x: rolled(halved(x))), EVALUATED, ROWS_OF, "fail", OTHERS),
    "rolled, served": (computing(lambda x: rolled(halved(x))), SERVED, ROWS_OF, "warn", OTHERS),
    "a column rolled beside a large one": (
        computing(lambda x: tf.concat([1e6 * (1 + x), rolled(5e-4 * x)], axis=1)),
        EVALUATED, ROWS_OF, "warn", LEAK,
    ),
    "a column rolled of almost equal numbers": (
        computing(lambda x: tf.concat([x, rolled(1.7e9 + 86400.0 * 10 * x)], axis=1)),
        EVALUATED, ROWS_OF, "warn", LEAK,
    ),
    "rolled, of float16": (
        computing(lambda x: rolled(halved(x, tf.float16))), EVALUATED, ROWS_OF, "fail", OTHERS
    ),
    "reversed": (computing(lambda x: halved(x)[::-1]), EVALUATED, ROWS_OF, "fail", OTHERS),
    "sorted by row": (
        computing(lambda x: tf.sort(halved(x), axis=0)), EVALUATED, ROWS_OF, "fail", OTHERS
    ),
    "half output rolled": (
        computing(lambda x: rolled(tf.cast(0.5 + 0.01 * x, tf.bfloat16))),
        EVALUATED, ROWS_OF, "fail", OTHERS,
    ),
    "table of float16 rolled": (
        computing(lambda x, t: rolled(looked_up(x, t)), t=table), EVALUATED, ROWS_OF, "fail", LEAK
    ),
    "half precision beside": (computing(beside), EVALUATED, ROWS_OF, "fail", LEAK),
    "half precision in another output": (
        computing(lambda x: {"half": halved(x), "y": beside(x)}),
        EVALUATED, ROWS_OF, "fail", "output 'y': row 0 alone gives",
    ),
    "in a branch": (
        computing(lambda x: tf.cond(tf.size(x) > 0, lambda: rolled(halved(x)), lambda: x)),
        EVALUATED, ROWS_OF, "fail", OTHERS,
    ),
    **{
        f"{name} rolled": (of_keras(name, policy, rolled), EVALUATED, ROWS_OF, "fail", OTHERS)
        for name, policy in (("keras", "mixed_float16"), ("tf_keras", "mixed_bfloat16"))
    },
    **{
        f"{name} {policy}": (of_keras(name, policy), EVALUATED, ROWS_OF, "pass", "")
        for name in ("keras", "tf_keras")
        for policy in ("mixed_float16", "mixed_bfloat16")
    },
    "half": (computing(halved), EVALUATED, ROWS_OF, "pass", ""),
    "half output": (computing(lambda x: tf.cast(x, tf.bfloat16)), EVALUATED, ROWS_OF, "pass", ""),
    "values of a row sorted": (
        computing(lambda x: tf.sort(halved(x), axis=1)), EVALUATED, ROWS_OF, "pass", ""
    ),
    "rows alike": (computing(lambda x: halved(x * 1e-3)), EVALUATED, ROWS_OF, "pass", ""),
    "rows that occur twice": (
        computing(lambda x: tf.round(halved(x) * 100.0)), EVALUATED, ROWS_OF, "pass", ""
    ),
    "infinite in half": (
        computing(lambda x: tf.where(x > 0.5, halved(x), -np.inf)), EVALUATED, ROWS_OF, "pass", ""
    ),
    # Padding.
    "padded": (computing(padded, TEXT), EVALUATED, ROWS_OF, "warn", "shape"),
    "padded in front": (computing(padded_in_front, TEXT), EVALUATED, ROWS_OF, "warn", "shape"),
    "padded and rolled": (
        computing(lambda t: rolled(padded(t)), TEXT), EVALUATED, ROWS_OF, "fail", "instead of"
    ),
    "padded in front and rolled": (
        computing(lambda t: rolled(padded_in_front(t)), TEXT),
        EVALUATED, ROWS_OF, "fail", "instead of",
    ),
    "padded text rolled": (
        computing(lambda t: rolled(letters_of(t).to_tensor("")), TEXT),
        EVALUATED, ROWS_OF, "fail", "instead of",
    ),
    "padded and mixed further down": (
        computing(lambda t: mixed_from_row_2_on(padded(t)), TEXT),
        EVALUATED, ROWS_OF, "fail", "row 2 alone",
    ),
    "padded and mixed in large batches": (
        computing(
            lambda t: tf.where(tf.size(t) > 64, rolled(padded(t)), padded(t)), TEXT
        ),
        EVALUATED, "batch_sizes", "fail", "with 65 rows",
    ),
    # Weights.
    "NaN in a kernel": (
        computing(lambda x: tf.argmax(x @ weights(), axis=1)),
        SERVED, "variables_finite", "fail", "NaN in a constant",
    ),
    "NaN in a kernel that is cast and passed on": (
        computing(lambda x: tf.argmax(tf.cond(
            tf.size(x) > 0, lambda: x @ tf.cast(tf.transpose(tf.constant(weights(), tf.float64)),
                                                tf.float32), lambda: x), axis=1)),
        SERVED, "variables_finite", "fail", "NaN in a constant",
    ),
    "NaN in a kernel of bfloat16": (
        computing(lambda x: tf.argmax(tf.cast(x, tf.bfloat16) @ tf.constant(weights(), tf.bfloat16),
                                      axis=1)),
        SERVED, "variables_finite", "fail", "NaN in a constant",
    ),
    "NaN in a frozen graph": (
        frozen_by_keras, SERVED, "variables_finite", "fail", "NaN in a constant"
    ),
    "NaN in a table": (
        computing(lambda x: tf.argmax(tf.gather(tf.constant([1.0, NAN]), tf.cast(x, tf.int32)), 1)),
        SERVED, "variables_finite", "warn", "NaN in a constant",
    ),
    "NaN for a missing value": (
        lambda: serving(imputed, SERIALIZED), SERVED, "variables_finite", "pass", ""
    ),
    "NaN where nothing is known": (
        computing(lambda x: tf.where(x > 2.0, [NAN, NAN], tf.where(x < 0.0, x * NAN, x))),
        SERVED, "variables_finite", "pass", "",
    ),
    "attention without what comes later": (
        computing(masked), EVALUATED, "variables_finite", "pass", ""
    ),
    # Text.
    "images": (computing(image), SERVED, "outputs_utf8", "warn", "'y' holds bytes"),
    "images as bytes": (
        computing(lambda x: {"y_bytes": image(x)}), SERVED, "outputs_utf8", "pass", ""
    ),
    "images for an Evaluator": (computing(image), NO_SERVER, "outputs_utf8", "skip", ""),
    "text": (
        computing(lambda x: tf.strings.join(["é", tf.strings.as_string(x)])),
        SERVED, "outputs_utf8", "pass", "",
    ),
    # State.
    **{
        f"state of {name}": (stateful(name), SERVED, "deterministic", "warn", "each call assigns '")
        for name in ("keras", "tf_keras")
    },
    "slow state": (
        computing(
            lambda x, n: x + n.assign_add(1e-7 * tf.reduce_mean(x)),
            n=lambda: tf.Variable(0.0, name="drift"),
        ),
        EVALUATED, "deterministic", "warn", "computes outputs from 'drift', and changes it",
    ),
    "state of one row in ten thousand": (
        computing(
            lambda x, n: x + tf.floor(n.assign_add(1.0) / 1e4),
            n=lambda: tf.Variable(0.0, name="calls"),
        ),
        EVALUATED, "deterministic", "warn", "computes outputs from 'calls', and changes it",
    ),
    "state that no output reads": (
        computing(
            lambda x, n: after(n.assign_add(1.0), x), n=lambda: tf.Variable(0.0, name="calls")
        ),
        EVALUATED, "deterministic", "pass", "",
    ),
    "state that the first call fills": (
        computing(
            lambda x, n: x + n.assign(tf.ones([2])), n=lambda: tf.Variable([0.0, 0.0], name="table")
        ),
        EVALUATED, "deterministic", "pass", "",
    ),
    "state that each call begins anew": (
        computing(
            lambda x, n: after(n.assign(0.0), x) + n.assign_add(tf.reduce_sum(x) * 1e-9),
            n=lambda: tf.Variable(0.0, name="scratch"),
        ),
        EVALUATED, "deterministic", "pass", "",
    ),
    "state that is assigned alike beside a counter that no output reads": (
        computing(
            lambda x, n, calls: after(calls.assign_add(1.0), x + n.assign(1.0)),
            n=lambda: tf.Variable(0.0, name="cache"),
            calls=lambda: tf.Variable(0.0, name="calls"),
        ),
        EVALUATED, "deterministic", "pass", "",
    ),
    "counter": (
        computing(lambda x, n: x + n.assign_add(1.0), n=lambda: tf.Variable(0.0, name="calls")),
        EVALUATED, "deterministic", "fail", "each call assigns 'calls'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FINDINGS)
def test_is_found_and_nothing_else(name: str, check: Check) -> None:
    make, contract, subject, status, told = FINDINGS[name]
    report = check(make(), contract)
    result = report[subject]
    assert result.status == status, (result, report.summary())
    assert told in result.message
    assert (told == "shape") == ("pad the output" in result.remedy)
    assert [each.name for each in report.failures] == [subject] * (status == "fail")


REMEDIES = {
    "keras": (dropping("keras"), "training=False"),
    "tf_keras": (dropping("tf_keras"), "training=False"),
    "counter": (FINDINGS["counter"][0], "keep no state"),
}


@pytest.mark.parametrize("name", REMEDIES)
def test_the_remedy_is_for_dropout_or_for_state(name: str, check: Check) -> None:
    make, remedy = REMEDIES[name]
    assert remedy in check(make(), SERVED)["deterministic"].remedy


@pytest.mark.parametrize("number", [1.0, 1])
def test_a_table_that_grows_by_words_beside_numbers_is_found(
    number: float | int, check: Check
) -> None:
    """Examples with new words keep their numbers, without which no signature scores them."""
    spec = {
        "n": tf.io.FixedLenFeature([], tf.float32 if isinstance(number, float) else tf.int64),
        "word": tf.io.FixedLenFeature([], tf.string),
    }
    known = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)

    def serve(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        row = tf.io.parse_example(rows, spec)
        known.insert(row["word"], tf.ones_like(row["word"], tf.int64))
        return {"y": tf.cast(row["n"], tf.float32)}

    examples = tuple(example(n=number * row, word=f"word {row % 3}") for row in range(40))
    contract = dataclasses.replace(SERVED, examples=examples)
    result = check(serving(serve, SERIALIZED, known=known), contract)["state_growth"]
    assert result.status == "warn" and "grows with new values" in result.message, result


@pytest.mark.parametrize(
    ("name", "function", "status"),
    [
        ("probabilities", lambda x: tf.concat([1.0 - x, x], 1), "warn"),
        ("probability", lambda x: 2.0 * x - 1.0, "warn"),
        ("probability", lambda x: tf.cast(2.0 * x - 1.0, tf.bfloat16), "warn"),
        ("head_probs", lambda x: x, "pass"),
        ("probabilities", tf.sigmoid, "pass"),
        ("probabilities", lambda x: tf.cast(tf.sigmoid(x), tf.bfloat16), "pass"),
        ("log_probabilities", lambda x: tf.math.log_sigmoid(x), "pass"),
        ("scores", lambda x: x, "pass"),
    ],
)
def test_probabilities_beyond_0_and_1(
    name: str, function: Callable[[tf.Tensor], tf.Tensor], status: str, check: Check
) -> None:
    def serve(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        x = tf.io.parse_example(rows, {"x": tf.io.FixedLenFeature([1], tf.float32)})["x"]
        return {name: function(x)}

    examples = tuple(example(x=0.1 * row - 1.0) for row in range(40))
    report = check(serving(serve, SERIALIZED), dataclasses.replace(EVALUATED, examples=examples))
    assert report["outputs_finite"].status == status, report.summary()


# Rows that the first examples do not have, and whose scores depend on the rows beside them.


def of_others(number: str, x: tf.Tensor) -> tf.Tensor:
    """Scores 300 rows, of which the few above 50 are scored otherwise."""
    rare = x > 50.0
    numbers = {
        "mean": tf.reduce_mean(x) + tf.zeros_like(x),
        "largest": tf.reduce_max(tf.where(rare, 0.0, x)) + tf.zeros_like(x),
        "row before": tf.roll(x, 1, 0),
        "rank": tf.cast(tf.argsort(tf.argsort(x)), tf.float32),
        "constant": 7.0 + tf.zeros_like(x),
        "function": tf.sin(x),
        "random": tf.random.uniform(tf.shape(x)) * 99.0,
        "dropped": tf.nn.dropout(x, 0.5, seed=3),
    }
    if number == "counted":  # each row sees the rare ones before it
        return x + 9.0 * tf.cumsum(tf.cast(rare, tf.float32))
    if number == "widest":
        return x + 9.0 * tf.cast(tf.reduce_any(rare), tf.float32)
    return tf.where(rare, numbers[number], x)


@pytest.mark.parametrize("takes_tensors", [False, True])
@pytest.mark.parametrize("number", ["mean", "largest", "row before", "rank", "counted", "widest"])
def test_rare_rows_that_depend_on_others_are_found(
    number: str, takes_tensors: bool, check: Check
) -> None:
    report = check(*rare_rows(number, takes_tensors))
    assert [failure.name for failure in report.failures] == ["eval_rows"], report.summary()
    assert "in a batch of 16 output 'y' is" in report["eval_rows"].message
    assert "must" in report["eval_rows"].remedy or "normalise" in report["eval_rows"].remedy
    assert len(report.failing_examples) == 1


@pytest.mark.parametrize("number", ["constant", "function"])
def test_rare_rows_that_are_scored_otherwise_pass(number: str, check: Check) -> None:
    report = check(*rare_rows(number, False))
    assert report.passed and not report["eval_rows"].remedy, report.summary()


@pytest.mark.parametrize(("number", "step"), [("random", 71), ("dropped", 17)])
def test_rare_rows_that_are_scored_at_random_are_found(
    number: str, step: int, check: Check
) -> None:
    result = check(*rare_rows(number, False, step))["eval_rows"]
    assert result.status == "fail" and "output 'y' of a second call is" in result.message
    assert "training=False" in result.remedy and "normalise" not in result.remedy


def rare_rows(
    number: str, takes_tensors: bool, step: int = 71
) -> tuple[tf.Module, ServingContract]:
    def serve(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        spec = {"x": tf.io.FixedLenFeature([], tf.float32)}
        x = rows[:, 0] if takes_tensors else tf.io.parse_example(rows, spec)["x"]
        return {"y": of_others(number, x)[:, None]}

    late = range(70, 283, step)
    values = [99.0 if row in late else row % 40 + 0.001 * row for row in range(300)]
    examples = tuple(example(x=value) for value in values)
    spec = tf.TensorSpec([None, 1], tf.float32, name="x") if takes_tensors else SERIALIZED
    return serving(serve, spec), dataclasses.replace(EVALUATED, examples=examples)


def test_rounding_that_a_model_multiplies_is_not_an_effect_of_other_rows(check: Check) -> None:
    def serve(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        x = tf.io.parse_example(rows, {"x": tf.io.FixedLenFeature([8], tf.float32)})["x"]
        weights = (
            tf.random.stateless_normal([8, 200], [1, 2]),
            tf.random.stateless_normal([200, 200], [3, 4]),
        )
        hidden = x @ weights[0]
        for _ in range(3):
            hidden = tf.sin(hidden @ weights[1])
        # Only of late rows, so that the other checks, of the first rows, have no part in it.
        return {"y": tf.where(x[:, :1] > 0.0, hidden @ weights[1][:, :1], x[:, :1])}

    rows = np.random.default_rng(0).normal(size=(300, 8))
    rows[:, 0] = np.where(np.arange(300) < 32, -1.0, 1.0) * np.abs(rows[:, 0])
    examples = tuple(example(x=list(map(float, row))) for row in rows)
    report = check(serving(serve, SERIALIZED), dataclasses.replace(EVALUATED, examples=examples))
    assert report.passed, report.summary()


def test_rounding_by_the_width_of_lists_is_a_warning(check: Check) -> None:
    """Sums over a row that is padded to the longest list of its batch round otherwise."""

    def serve(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        ragged = tf.io.RaggedFeature(tf.float32)
        x = tf.io.parse_example(rows, {"x": ragged})["x"]
        count = tf.cast(x.row_lengths(), tf.float32)[:, None]
        known = tf.sequence_mask(x.row_lengths())
        mean, of_squares = (
            tf.reduce_sum(tf.where(known, values, 0.0), 1, keepdims=True) / count
            for values in (x.to_tensor(), x.to_tensor() ** 2)
        )
        return {"y": of_squares - mean**2}

    draw = np.random.default_rng(0)
    lengths = [40] * 32 + [*draw.integers(30, 400, 200)]
    examples = tuple(
        example(x=list(map(float, 1000 + draw.normal(size=length)))) for length in lengths
    )
    report = check(serving(serve, SERIALIZED), dataclasses.replace(EVALUATED, examples=examples))
    assert report["eval_rows"].status == "warn", report["eval_rows"]


def test_what_a_model_draws_is_no_trace_of_the_label(check: Check) -> None:
    draws = scoring(lambda row: row["miles"] + tf.random.uniform(tf.shape(row["miles"])))
    report = check(draws, EVALUATED_EXAMPLES)
    assert report["deterministic"].status == "fail", report.summary()
    assert report["without_label"].status == "pass", report["without_label"]


def test_a_label_that_leaks_shows_beside_what_a_model_draws(check: Check) -> None:
    tips = tf.io.FixedLenFeature([1], tf.float32, [-90.0])
    leaks = scoring(lambda row: row["tips"] + tf.random.uniform(tf.shape(row["tips"])), tips=tips)
    result = check(leaks, EVALUATED_EXAMPLES)["without_label"]
    assert result.status == "fail" and "depends on the label" in result.message, result


def test_a_little_noise_is_not_taken_for_rounding(check: Check) -> None:
    noise = scoring(lambda row: row["miles"] + 1e-6 * tf.random.normal(tf.shape(row["miles"])))
    result = check(noise, EVALUATED_EXAMPLES)["deterministic"]
    assert result.status == "warn" and "draws random numbers" in result.message, result
