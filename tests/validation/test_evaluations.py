"""Mistakes between a model, its examples and an eval config are found before the Evaluator runs."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2
from tensorflow_model_analysis.proto import config_pb2

from generic_trainer.errors import DataError
from generic_trainer.validation import Result, ServingContract, lint_eval_config
from tests.examples import example
from tests.validation import broken_evaluations, models
from tests.validation.broken_evaluations import (
    EXCLUDED,
    GOOD_CONFIG,
    MSE,
    RECIPES,
    REHEARSED,
    THRESHOLD,
    contract,
    metric,
    spec,
)
from tests.validation.conftest import Check
from tests.validation.models import FEATURES, SERIALIZED, VOCABULARY
from tests.validation.recipes import Features, scoring
from tests.validation.test_broken_models import find

FROM_LOGITS = """config: '"from_logits": true'"""
# The rehearsal takes seconds; where another check is meant to find the mistake it stays away.
WITHOUT_REHEARSAL = {"eval_rehearsal": "skip"}
SCHEMA = schema_pb2.Schema(
    feature=[
        {"name": "miles", "type": schema_pb2.FLOAT, "presence": {"min_fraction": 1.0}},
        {"name": "payment", "type": schema_pb2.BYTES, "string_domain": {"value": VOCABULARY}},
        {"name": "tips", "type": schema_pb2.FLOAT},
    ]
)


def rehearse(check: Check, model: Path, wanted: ServingContract, **fields: Any) -> Result:
    """Returns what the rehearsal alone says, beside the scores that it looks at."""
    wanted = dataclasses.replace(wanted, **fields)
    return check(model, wanted, only="scores eval_rehearsal")["eval_rehearsal"]


@pytest.mark.parametrize("name", RECIPES)
def test_is_found(name: str, check: Check, good_model: Path, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    alone = dataclasses.replace(recipe.contract, severities=WITHOUT_REHEARSAL)
    find(dataclasses.replace(recipe, contract=alone), check, good_model, tmp_path)


@pytest.mark.parametrize("name", REHEARSED)
def test_the_rehearsal_finds_it_too(
    name: str, check: Check, good_model: Path, tmp_path: Path
) -> None:
    find(REHEARSED[name], check, good_model, tmp_path)


def test_a_good_model_is_rehearsed(check: Check, good_model: Path) -> None:
    """With slices, and a threshold for the difference to a baseline, which is left out."""
    bounds = "change_threshold { direction: LOWER_IS_BETTER absolute { value: 0.1 } }"
    config = GOOD_CONFIG.replace("threshold {", f"threshold {{ {bounds}", 1)
    config = config.replace("model_specs {", 'model_specs { name: "new"')
    config += ' model_specs { name: "old" label_key: "tips" is_baseline: true } slicing_specs { }'
    wanted = contract(config + ' slicing_specs { feature_keys: "payment" }')
    wanted = dataclasses.replace(wanted, schema=SCHEMA, base_model=str(good_model))
    report = check(good_model, wanted)
    assert report.passed, report.summary()
    assert report["eval_rehearsal"].status == "pass"
    assert report.facts["rehearsed_metrics"]["mean_squared_error"] > 0


def test_what_only_the_evaluator_can_know(check: Check, tmp_path: Path) -> None:
    """Preprocessed slices, two signatures, a plot of an interval, a precision of no positives."""
    metric, spec = broken_evaluations.metric, broken_evaluations.spec
    module = scoring(lambda features: features["miles"] - 9.0)

    def shouted(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"payment": tf.strings.upper(tf.io.parse_example(x, FEATURES)["payment"])}

    functions = {"shouted": (shouted, [SERIALIZED]), "other": (module.serve, [SERIALIZED])}
    signatures = {"serving_default": module.serve, **models.signatures(**functions)}
    folder = models.save(module, tmp_path / "model", signatures)
    shouts = 'preprocessing_function_names: "shouted"'
    more = f'name: "a" {shouts}', f'name: "b" signature_name: "other" {shouts}'
    specs = "".join(spec(more=each) for each in more)
    plot = metric("CalibrationPlot", """config: '"left": -9, "right": 9'""")
    slices = 'slicing_specs { } slicing_specs { feature_values { key: "payment" value: "CASH" } }'
    wanted = contract(specs + metric("Precision") + plot + MSE + slices)
    rows = [example(miles=0.1 * n, payment="cash", tips=float(n % 2)) for n in range(40)]
    report = check(folder, dataclasses.replace(wanted, examples=rows, schema=SCHEMA))
    assert report.passed and report["eval_config"].status == "pass", report.summary()
    assert report["eval_rehearsal"].message.count("is nan on 20 examples") == 2
    own = contract(spec() + metric("Own", 'module: "own"'))
    assert rehearse(check, folder, own).message == "No module named 'own'"


def test_a_config_can_be_a_file(check: Check, good_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "eval_config.pbtxt"
    file.write_text(GOOD_CONFIG.replace("tips", "tip"))
    wanted = ServingContract(eval_config=str(file), schema=SCHEMA, severities=WITHOUT_REHEARSAL)
    assert check(good_model, wanted)["eval_config"].status == "fail"


def test_lint_before_training() -> None:
    config = text_format.Parse(GOOD_CONFIG, config_pb2.EvalConfig())
    assert lint_eval_config(config, SCHEMA).status == "pass"
    config.model_specs[0].label_key = "tip"
    config.slicing_specs.add(feature_keys=["city"])
    found = lint_eval_config(config, SCHEMA)
    assert found.status == "fail" and "'tip'" in found.message and "'city'" in found.message
    assert lint_eval_config(config).status == "pass"
    # A preprocessing function may return what has any name.
    config.slicing_specs.pop()
    config.model_specs[0].preprocessing_function_names.append("transform_labels")
    assert lint_eval_config(config, SCHEMA).status == "warn"


@pytest.mark.parametrize(
    ("config", "status", "told"),
    [
        ('model_specs { label_key: "y" is_baseline: true }', "fail", "is_baseline: true"),
        ('model_specs { label_key: "y" } model_specs { is_baseline: true }', "warn", "names"),
        (
            'model_specs { name: "a" label_key: "y" } model_specs { name: "a" is_baseline: true }',
            "warn",
            "without different names",
        ),
        (
            'model_specs { name: "a" label_key: "y" } metrics_specs { model_names: "b" }',
            "warn",
            "b",
        ),
        (
            'model_specs { name: "a" label_key: "y" } model_specs { name: "c" is_baseline: true } '
            'metrics_specs { model_names: "b" }',
            "fail",
            "'b', the model_specs are",
        ),
        (
            'model_specs { label_key: "y" } metrics_specs { metrics { class_name: "AUC" threshold '
            "{ change_threshold { absolute { value: 0.1 } } } } }",
            "warn",
            "no direction",
        ),
        (
            'model_specs { label_key: "y" } metrics_specs { metrics { class_name: "AUC" } '
            f'thresholds {{ key: "auc" {EXCLUDED.replace("threshold", "value", 1)} }} }}',
            "fail",
            "thresholds of 'auc': lower_bound",
        ),
        (
            'model_specs { label_key: "y" } metrics_specs { metrics { class_name: "AUC" '
            f"per_slice_thresholds {{ {EXCLUDED} }} }} }}",
            "fail",
            "metric 'AUC': lower_bound",
        ),
        (
            'model_specs { label_key: "y" } metrics_specs { metrics { class_name: "AUC" } '
            f'per_slice_thresholds {{ key: "auc" value {{ thresholds {{ {EXCLUDED} }} }} }} }}',
            "fail",
            "thresholds of slices for 'auc': lower_bound",
        ),
    ],
)
def test_lint_of_names_and_baselines(config: str, status: str, told: str) -> None:
    """Refused is what the Evaluator of TFX 1.16 fails with, now or once there is a baseline."""
    found = lint_eval_config(text_format.Parse(config, config_pb2.EvalConfig()))
    assert found.status == status and told in found.message, found


@pytest.mark.parametrize(
    ("label", "more", "status"),
    [
        ("tips_xf", "", "warn"),
        ("tips_xf", 'slicing_specs { feature_keys: "payment_xf" }', "warn"),
        ("tips_xf", 'slicing_specs { feature_keys: "payment" }', "fail"),
        ("tips", "", "pass"),
        ("tip", "", "fail"),
    ],
)
def test_an_evaluator_may_read_the_output_of_transform(label: str, more: str, status: str) -> None:
    config = text_format.Parse(GOOD_CONFIG + more, config_pb2.EvalConfig())
    config.model_specs[0].label_key = label
    transformed = schema_pb2.Schema()
    for name in ("tips_xf", "payment_xf", "miles"):
        transformed.feature.add(name=name, type=schema_pb2.FLOAT)
    found = lint_eval_config(config, SCHEMA, transformed)
    assert found.status == status, found
    assert ("the output of Transform alone" in found.message) == (label == "tips_xf")


def test_a_slice_by_a_feature_that_no_example_read_has_is_a_failure_by_a_schema_alone(
    check: Check, good_model: Path
) -> None:
    wanted = contract(GOOD_CONFIG + ' slicing_specs { feature_keys: "coupon" }')
    wanted = dataclasses.replace(wanted, severities=WITHOUT_REHEARSAL)
    for schema, status in ((None, "warn"), (SCHEMA, "fail")):
        result = check(good_model, dataclasses.replace(wanted, schema=schema))["eval_config"]
        assert result.status == status and "'coupon'" in result.message, result
    rows = [example(miles=1.0, tips=1.0)] * 600 + [example(miles=1.0, tips=1.0, coupon=b"a")]
    result = check(good_model, dataclasses.replace(wanted, schema=None, examples=rows))
    assert result["eval_config"].status == "pass", result["eval_config"]


@pytest.mark.parametrize(
    ("value", "mass", "status"),
    [("euro", None, "fail"), ("euro", 0.9, "warn"), ("late", None, "pass"), ("cash", None, "pass")],
)
def test_a_slice_beyond_a_domain_that_rows_may_leave(
    value: str, mass: float | None, status: str, check: Check, good_model: Path
) -> None:
    schema = schema_pb2.Schema.FromString(SCHEMA.SerializeToString())
    if mass is not None:
        schema.feature[1].distribution_constraints.min_domain_mass = mass
    sliced = f'slicing_specs {{ feature_values {{ key: "payment" value: "{value}" }} }}'
    rows = [example(miles=1.0, payment="cash", tips=1.0)] * 40
    rows.append(example(miles=1.0, payment="late", tips=1.0))
    wanted = dataclasses.replace(contract(GOOD_CONFIG + sliced), examples=rows, schema=schema)
    result = check(good_model, dataclasses.replace(wanted, severities=WITHOUT_REHEARSAL))
    assert result["eval_config"].status == status, result["eval_config"]


def test_lint_of_a_file_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "eval_config.pbtxt"
    file.write_text("model_spec {}")
    for path in (file, str(file)):
        with pytest.raises(DataError, match=r"eval_config\.pbtxt cannot be read") as caught:
            lint_eval_config(path)
        assert caught.value.path == str(file)


@pytest.mark.parametrize(("label", "status"), [("miles", "warn"), ("tips", "pass")])
def test_a_label_that_the_model_needs_and_the_contract_does_not_name(
    label: str, status: str, check: Check, good_model: Path
) -> None:
    wanted = contract(f'model_specs {{ label_key: "{label}" }} {MSE}')
    result = check(good_model, dataclasses.replace(wanted, severities=WITHOUT_REHEARSAL))
    assert result["eval_signatures"].status == status, result.summary()
    assert ("'miles' is a feature that" in result["eval_signatures"].message) == (status == "warn")


def test_a_label_beyond_the_classes_in_a_late_example(check: Check, tmp_path: Path) -> None:
    def score(features: Features) -> tf.Tensor:
        miles = features["miles"]
        return tf.nn.softmax(tf.stack([miles, -miles, miles / 2.0], axis=1))

    folder = models.save(scoring(score), tmp_path / "model")
    metric = MSE.replace("MeanSquaredError", "SparseCategoricalCrossentropy")
    config = contract(f'model_specs {{ label_key: "tips" }} {metric}')
    for last, status in ((2, "pass"), (3, "fail")):
        rows = [example(miles=0.1 * row, tips=row % 3) for row in range(40)]
        rows.append(example(miles=4.0, tips=last))
        result = rehearse(check, folder, config, examples=rows)
        assert result.status == status, result


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ('metrics_specs { query_key: "trip" }', "query_key 'trip'"),
        ('cross_slicing_specs { slicing_specs { feature_keys: "city" } }', "feature 'city'"),
        ('cross_slicing_specs { baseline_spec { feature_keys: "city" } }', "feature 'city'"),
        ('metrics_specs { query_key: "payment" }', ""),
    ],
)
def test_lint_of_names_that_tfma_looks_up_in_silence(more: str, told: str) -> None:
    config = text_format.Parse(GOOD_CONFIG + more, config_pb2.EvalConfig())
    found = lint_eval_config(config, SCHEMA)
    assert found.status == ("fail" if told else "pass"), found
    assert told in found.message


BY_PAYMENT = 'slicing_specs { feature_keys: "payment" }'


@pytest.mark.parametrize(
    ("slices", "status"),
    [
        ("", "warn"),
        ('slicing_specs { feature_keys: "miles" }', "warn"),
        ('slicing_specs { feature_values { key: "payment" value: "card" } }', "warn"),
        ('slicing_specs { feature_keys: ["payment", "miles"] }', "warn"),
        (f"slicing_specs {{ }} {BY_PAYMENT}", "pass"),
        ('slicing_specs { feature_values { key: "payment" value: "cash" } }', "pass"),
        ("cross_slicing_specs { baseline_spec { } }", "warn"),
        ('cross_slicing_specs { slicing_specs { feature_keys: "payment" } }', "pass"),
        ('cross_slicing_specs { baseline_spec { feature_keys: "payment" } }', "pass"),
        ('cross_slicing_specs { slicing_specs { feature_keys: "miles" } }', "warn"),
        (f"{BY_PAYMENT} options {{ min_slice_size {{ value: 9 }} }}", "warn"),
    ],
)
def test_a_threshold_for_a_slice_needs_the_slice(slices: str, status: str) -> None:
    """Without it, or with too few examples in it, TFMA never blesses a model."""
    cash = 'slicing_specs { feature_values { key: "payment" value: "cash" } }'
    bound = THRESHOLD.replace("threshold {", f"per_slice_thresholds {{ {cash} threshold {{", 1)
    config = f"{broken_evaluations.spec()} {broken_evaluations.metric(more=bound)[:-1]} }} }} "
    found = lint_eval_config(text_format.Parse(config + slices, config_pb2.EvalConfig()), SCHEMA)
    assert found.status == status, found


def test_a_threshold_for_compared_slices_is_never_met() -> None:
    """TFMA looks for them among the slices that are not compared."""
    compared = 'cross_slicing_specs { baseline_spec { } slicing_specs { feature_keys: "payment" } }'
    own = THRESHOLD + f"cross_slice_thresholds {{ {compared} {THRESHOLD} }}"
    config = f"{broken_evaluations.spec()} {broken_evaluations.metric(more=own)} {compared}"
    config += "slicing_specs { }"
    found = lint_eval_config(text_format.Parse(config, config_pb2.EvalConfig()), SCHEMA)
    assert found.status == "warn" and "cross_slice_thresholds" in found.message, found


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        ("class_name: 'Precision' config: '\"top_k\": 1'", "'precision'"),
        ("class_name: 'Precision' config: '\"thresholds\": 0.2'", ""),
    ],
)
def test_a_threshold_of_which_tfma_reports_no_number(
    metric: str, told: str, check: Check, tmp_path: Path
) -> None:
    folder = models.save(scoring(lambda features: features["miles"] / 4.0), tmp_path / "model")
    config = f"model_specs {{ label_key: 'tips' }} metrics_specs {{ metrics {{ {metric} "
    rows = [example(miles=0.1 * row, tips=float(row % 2)) for row in range(40)]
    wanted = contract(f"{config} {THRESHOLD} }} }}")
    result = rehearse(check, folder, wanted, examples=rows)
    assert result.status == ("warn" if told else "pass"), result
    assert told in result.message


def test_a_late_example_without_a_named_input(check: Check, tmp_path: Path) -> None:
    """TFMA feeds a batch with it as lists of no value, which no dense input takes."""

    class Doubled(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.float32, name="miles")])
        def serve(self, miles: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"score": miles * 2.0}

    module = Doubled()
    folder = models.save(module, tmp_path / "model", {"serving_default": module.serve})
    rows = [example(miles=0.1 * row, tips=float(row % 2)) for row in range(40)]
    wanted = dataclasses.replace(contract(GOOD_CONFIG), schema=SCHEMA)
    for last, status in ((example(miles=4.0, tips=1.0), "pass"), (example(tips=1.0), "fail")):
        result = rehearse(check, folder, wanted, examples=[*rows, last])
        assert result.status == status, result


def test_the_rehearsal_names_the_cause(check: Check, good_model: Path) -> None:
    """And not TFMA's words around it."""
    ranked = """class_name: "NDCG" config: '"gain_key": "gain", "top_k_list": [1]'"""
    config = f'{GOOD_CONFIG} metrics_specs {{ query_key: "payment" metrics {{ {ranked} }} }}'
    result = rehearse(check, good_model, contract(config))
    assert result.status == "fail" and '"gain"' in result.message, result
    assert "add_input" not in result.message


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.half])
def test_scores_beyond_one_of_any_precision_for_a_metric_of_probabilities(
    dtype: tf.DType, check: Check, tmp_path: Path
) -> None:
    def score(features: Features) -> tf.Tensor:
        return tf.cast(features["miles"] - 1.0, dtype)

    folder = models.save(scoring(score), tmp_path / "model")
    config = contract(
        f'model_specs {{ label_key: "tips" }} {MSE.replace("MeanSquaredError", "AUC")}'
    )
    rows = [example(miles=0.1 * row, tips=float(row % 2)) for row in range(40)]
    result = rehearse(check, folder, config, examples=rows)
    assert result.status == "warn", result
    assert "'score' has values from -1 to 2" in result.message


@pytest.mark.parametrize(
    ("metric", "classes", "labels", "told"),
    [
        ("SparseCategoricalAccuracy", 3, 1, ""),
        ("SparseCategoricalAccuracy", 0, 1, "output 'score' is one number"),
        ("CategoricalAccuracy", 3, 3, ""),
        ("CategoricalAccuracy", 3, 1, "label 'tips' is one number"),
    ],
)
def test_metrics_of_several_classes_that_get_one_number(
    metric: str, classes: int, labels: int, told: str, check: Check, tmp_path: Path
) -> None:
    """TFMA takes the place of the largest of one number, which is 0, for the class."""

    def score(features: Features) -> tf.Tensor:
        number = tf.cast(features["miles"] > 2.0, tf.int64)
        return tf.one_hot(number, classes) if classes else number

    folder = models.save(scoring(score), tmp_path / "model")
    config = contract(
        f'model_specs {{ label_key: "tips" }} {MSE.replace("MeanSquaredError", metric)}'
    )
    rows = [
        example(miles=0.1 * row, tips=int(row > 20) if labels == 1 else [row <= 20, row > 20, 0])
        for row in range(40)
    ]
    result = rehearse(check, folder, config, examples=rows)
    assert result.status == ("warn" if told else "pass"), result
    assert told in result.message


@pytest.mark.parametrize(("infinite", "status"), [("bound", "warn"), ("score", "fail")])
def test_an_undefined_metric_is_a_failure_by_the_evaluated_output_alone(
    infinite: str, status: str, check: Check, tmp_path: Path
) -> None:
    class Bounded(tf.Module):
        @tf.function(input_signature=[SERIALIZED])
        def serve(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            miles = tf.io.parse_example(x, FEATURES)["miles"]
            outputs = {"bound": miles, "score": miles / 9.0}
            return outputs | {infinite: miles - float("inf")}

    folder = models.save(Bounded(), tmp_path / "model")
    config = spec(more='prediction_key: "score"') + metric("Precision")
    rows = [example(miles=0.1 * row, tips=float(row % 2)) for row in range(40)]
    result = rehearse(check, folder, contract(config), examples=rows)
    assert result.status == status and "'precision' is nan" in result.message, result
    assert ("among the predictions" in result.remedy) == (status == "fail"), result


@pytest.mark.parametrize(
    ("logits", "config", "status"),
    [("predict", "", "warn"), ("serving_default", "", "pass"), ("predict", FROM_LOGITS, "pass")],
)
def test_logits_of_the_signature_that_tfma_calls_by_default(
    logits: str, config: str, status: str, check: Check, tmp_path: Path
) -> None:
    module = scoring(lambda features: features["miles"] - 1.0)
    module.other = scoring(lambda features: features["miles"] / 9.0)
    of = {"predict": module.other.serve, "serving_default": module.other.serve}
    folder = models.save(module, tmp_path / "model", of | {logits: module.serve})
    rows = [example(miles=0.1 * row, tips=float(row % 2)) for row in range(40)]
    wanted = contract(spec() + metric("BinaryCrossentropy", config + THRESHOLD))
    result = rehearse(check, folder, wanted, examples=rows)
    assert result.status == status, result
