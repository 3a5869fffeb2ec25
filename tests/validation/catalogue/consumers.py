"""Faults of what goes along with a model: warm-up requests, the Evaluator's config, contracts."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from generic_trainer.validation import ServingContract
from tests.validation import models
from tests.validation.broken_evaluations import GOOD_CONFIG, MSE, THRESHOLD, contract, metric, spec
from tests.validation.broken_rows import SCHEMA
from tests.validation.catalogue.rows import add
from tests.validation.models import example
from tests.validation.recipes import damaging

# Warm-up requests.


def _text(folder: Path) -> None:
    models.write_warmup(folder).write_text('{"instances": [1.0]}\n')


def logs(fill: Callable[[Any], Any]) -> Callable[[Path], Any]:
    """Returns what writes one log, filled by a function."""

    def write(folder: Path) -> None:
        log = prediction_log_pb2.PredictionLog()
        fill(log)
        models.write_warmup(folder, log=log)

    return write


def _of_an_example(log: Any, kind: str = "classify_log") -> None:
    request = getattr(log, kind).request
    request.model_spec.signature_name = "serving_default"
    request.input.example_list.examples.add().ParseFromString(example(1.0, "cash"))


def several_at_once(log: Any, *methods: str) -> None:
    """Fills a log with one request that asks the default signature once for each method."""
    request = log.multi_inference_log.request
    for method in methods:
        task = request.tasks.add(method_name=f"tensorflow/serving/{method}")
        task.model_spec.signature_name = "serving_default"
    request.input.example_list.examples.add().ParseFromString(example(1.0, "cash"))


def _bare_request(folder: Path) -> None:
    request = predict_pb2.PredictRequest()
    models.fill_request(request)
    models.write_warmup(folder, log=request)


def _asks_for(log: Any) -> None:
    request = log.predict_log.request
    request.output_filter.append("probability")
    models.fill_request(request)


def _elsewhere(path: str) -> Callable[[Path], Any]:
    def write(folder: Path) -> None:
        file = models.write_warmup(folder)
        (folder / path).parent.mkdir(exist_ok=True)
        file.rename(folder / path)

    return write


for name, source, write, status in (
    ("warm_up_of_text", "serving#1562, serving#1602", _text, "fail"),
    ("warm_up_of_requests_without_logs", "serving#1426", _bare_request, "fail"),
    ("warm_up_of_empty_logs", "Unsupported log_type for warmup", logs(lambda log: None), "fail"),
    ("warm_up_of_session_runs", "Unsupported log_type for warmup",
     logs(lambda log: log.session_run_log.request.feed.add()), "fail"),
    ("warm_up_that_classifies_what_predicts", "classifier.cc: method_name",
     logs(_of_an_example), "fail"),
    ("warm_up_that_regresses_what_predicts", "regressor.cc: method_name",
     logs(lambda log: _of_an_example(log, "regress_log")), "fail"),
    ("warm_up_that_predicts_several_at_once", "multi_inference.cc: method_name",
     logs(lambda log: several_at_once(log, "predict")), "fail"),
    ("warm_up_that_asks_a_signature_twice", "multi_inference.cc: duplicate evaluation",
     logs(lambda log: several_at_once(log, "classify", "regress")), "fail"),
    ("warm_up_for_another_output", "output alias not found", logs(_asks_for), "fail"),
    ("warm_up_of_another_shape", "serving#1404",
     lambda f: models.write_warmup(f, value=[[b"a", b"b"]]), "fail"),
    ("warm_up_of_bytes_that_are_not_examples", "Could not parse example input",
     lambda f: models.write_warmup(f, value=[b"\xff\xfe"]), "fail"),
    ("warm_up_in_another_folder", "serving#1679, serving#1414",
     _elsewhere("assets/tf_serving_warmup_requests"), "warn"),
    ("warm_up_under_another_name", "serving#1728",
     _elsewhere("assets.extra/tf_serving_warmup_requests.tfrecord"), "warn"),
):  # fmt: skip
    add(name, "warmup", source, "TF Serving, InfraValidator", damaging(write), status=status)


# The Evaluator's config.

SPEC = spec()


def _metric(name: str, more: str = "") -> str:
    return metric(name, f"{more} {THRESHOLD}")


BUCKETS = """config: '{"buckets": 3}'"""
CHANGE = "threshold { change_threshold { absolute { value: 0.1 } } }"
for name, check, source, config, status in (
    ("three_model_specs", "eval_config", "config_util.verify_eval_config",
     f'{SPEC} {SPEC.replace("{", "{ name: " + chr(34) + "b" + chr(34))} '
     f'{SPEC.replace("{", "{ name: " + chr(34) + "c" + chr(34))} {MSE}', "fail"),
    ("two_baselines", "eval_config", "config_util.verify_eval_config",
     'model_specs { name: "a" label_key: "tips" is_baseline: true } '
     f'model_specs {{ name: "b" label_key: "tips" is_baseline: true }} {MSE}', "fail"),
    ("arguments_of_a_metric_that_are_not_json", "eval_config", "metric_specs.metric_instance",
     f"{SPEC} {_metric('MeanSquaredError', 'config: ' + chr(39) + '{name: mse}' + chr(39))}",
     "fail"),
    ("argument_that_a_metric_does_not_have", "eval_config", "metric_specs.metric_instance",
     f"{SPEC} {_metric('AUC', BUCKETS)}",
     "fail"),
    ("metric_of_a_module_that_is_not_there", "eval_config", "model-analysis#154",
     f"{SPEC} {_metric('Own', 'module: ' + chr(34) + 'own_metrics' + chr(34))}", "warn"),
    ("metric_of_an_output_that_is_not_there", "eval_signatures", "model-analysis#62",
     SPEC + " " + MSE.replace("metrics_specs {", 'metrics_specs { output_names: "risk"'), "fail"),
    ("metric_of_a_model_that_is_not_there", "eval_config", "model-analysis#90",
     SPEC + " " + MSE.replace("metrics_specs {", 'metrics_specs { model_names: "candidat"'),
     "fail"),
    ("change_threshold_without_a_direction", "eval_config", "tfx#1960",
     f'{SPEC} {_metric("MeanSquaredError").replace(THRESHOLD, CHANGE)}', "fail"),
    ("threshold_for_a_slice_on_an_absent_feature", "eval_config", "metrics_validator",
     f'{SPEC} metrics_specs {{ metrics {{ class_name: "MeanSquaredError" per_slice_thresholds {{ '
     'slicing_specs { feature_keys: "city" } threshold { value_threshold { upper_bound { value: 9 '
     "} } } } } }", "fail"),
    ("threshold_of_a_metric_that_is_not_computed", "eval_config",
     "building-machine-learning-pipelines#27",
     f'{SPEC} metrics_specs {{ metrics {{ class_name: "MeanSquaredError" }} thresholds {{ '
     'key: "auc" value { value_threshold { lower_bound { value: 0.5 } } } } }', "warn"),
    ("unknown_kind_of_model", "eval_rehearsal", "model_util.get_model_type",
     f'model_specs {{ label_key: "tips" model_type: "tf_kears" }} {MSE}', "fail"),
    ("label_of_text_for_a_number", "eval_rehearsal", "tfx#2920",
     f'model_specs {{ label_key: "payment" }} {MSE}', "fail"),
    ("classes_that_the_output_does_not_have", "eval_rehearsal", "model-analysis#100",
     SPEC + " " + MSE.replace(
         "metrics_specs {", "metrics_specs { binarize { class_ids { values: 7 } }"), "fail"),
    ("labels_for_outputs_that_are_not_there", "eval_rehearsal", "model-analysis#111",
     f'model_specs {{ label_keys {{ key: "risk" value: "tips" }} }} {MSE}', "fail"),
    ("weights_that_are_text", "eval_rehearsal", "example_weight_key",
     f'model_specs {{ label_key: "tips" example_weight_key: "payment" }} {MSE}', "fail"),
    ("area_under_a_curve_of_scores_beyond_one", "eval_rehearsal", "tfma AUC of logits",
     f'{SPEC} {_metric("AUC")}', "warn"),
    ("slice_of_a_value_that_is_not_in_the_domain", "eval_config", "tfma slicing_specs",
     f'{GOOD_CONFIG} slicing_specs {{ feature_values {{ key: "payment" value: "crad" }} }}',
     "fail"),
):  # fmt: skip
    made = contract(config)
    if "domain" in name:
        made = dataclasses.replace(made, schema=SCHEMA)
    if "area" in name:
        of_classes = [example(0.1 * row, "cash", float(row % 2)) for row in range(40)]
        made = dataclasses.replace(made, examples=of_classes)
    add(name, check, source, "Evaluator", shutil.copytree, made, status=status)


# What the contract names.


def _broken_file(name: str, content: bytes, **more: Any) -> Callable[[Path], ServingContract]:
    """Returns a contract with a file beside the good model that is not what it should be."""

    def of(good: Path) -> ServingContract:
        file = good.parent / f"broken_{name}"
        file.write_bytes(content)
        return ServingContract(signatures=(), **{name: str(file)}, **more)

    return of


for name, made in {
    "schema_that_does_not_parse": _broken_file("schema", b"feature { nam: 1 }"),
    "eval_config_that_does_not_parse": _broken_file("eval_config", b"model_specs { lable_key: 1 }"),
    "examples_that_were_truncated": _broken_file("examples", b"\x10\0\0\0\0\0\0\0\0\0"),
}.items():
    source = "text_format.ParseError, DataLossError"
    add(name, "inputs_read", source, "Evaluator", shutil.copytree, made)
