"""Checks of the model against the config of the Evaluator downstream."""

import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from generic_trainer._core.scratch import ScratchFolder
from generic_trainer._core.texts import did_you_mean, reason_of
from generic_trainer.validation._check import Findings, Skip, check, fail, note, warn
from generic_trainer.validation._lists import filled
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._schema_rows import domain_words, parsed
from generic_trainer.validation._scoring import Outputs, extent, is_float, not_finite
from generic_trainer.validation._signatures import feature_of
from generic_trainer.validation._tfma_lint import is_elsewhere, lint_findings

# TFMA picks these by itself from several outputs.
_KNOWN_OUTPUTS = {"scores", "outputs", "predictions", "logistic", "probabilities", "logits"}
_OF_SCORES = {  # that need one for each class, and take the largest
    "CategoricalAccuracy", "SparseCategoricalAccuracy", "SparseTopKCategoricalAccuracy",
    "TopKCategoricalAccuracy",
}  # fmt: skip
_OF_LIBRARIES = ("", "keras", "tensorflow", "tensorflow_model_analysis", "tf_keras")
_OF_ONE_HOT = {"CategoricalAccuracy", "TopKCategoricalAccuracy"}  # that need such labels
_OF_PROBABILITIES = {
    "AUC", "AUCPrecisionRecall", "BinaryCrossEntropy", "BinaryCrossentropy", "CalibrationPlot",
}  # fmt: skip
_AS_IT_IS = re.compile(r'"left"|"from_logits": *true')  # a plot of an interval states its left end

_OF_ROW = re.compile("add_input failed on ")  # TFMA's words around the cause
_EXAMPLES = 20  # of the rehearsal
# DirectRunner would try to download Prism, a runner in Go, first.
_BEAM = (
    "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner",
    "--direct_running_mode=in_memory",
)


@check(after="variables_finite", needs="inputs_read", decided_by="code")
def eval_config(model: ModelUnderTest) -> Findings:
    """Labels, weights, slices, metrics and thresholds of the eval config make sense.

    The Evaluator runs hours later. A wrong configuration is an error there, or a metric without a
    meaning. This check needs no model, so that it also runs before the training.

    Example: a threshold without a direction; a slice by a feature that the schema does not have.
    """
    if model.evidence.eval_config is None:
        raise Skip("the contract names no eval config")
    preprocessed: set[str] | None = None  # unless all preprocessing functions are signatures
    functions = {
        name
        for spec in model.evidence.eval_config.model_specs
        for name in spec.preprocessing_function_names
    }
    if functions <= model.signatures.keys():
        preprocessed = {key for name in functions for key in model.signatures[name].outputs}
    evidence, schema = model.evidence, model.evidence.schema
    features = evidence.feature_dtypes
    if schema is None and features is not None:  # those of the first rows, and of later ones
        later = (example.features.feature.keys() for example in parsed(evidence.eval_rows))
        features = dict.fromkeys(set(features).union(*later), "")
    yield from lint_findings(
        evidence.eval_config,
        features,
        preprocessed,
        transformed=evidence.transformed_dtypes,
        are_all=schema is not None,
    )
    of_schema = {feature.name: feature for feature in schema.feature} if schema else {}
    for spec in model.evidence.eval_config.slicing_specs:
        for key, value in sorted(spec.feature_values.items()):
            feature: Any = of_schema.get(key)
            known = [] if feature is None else domain_words(schema, feature)
            words = [word.decode(errors="replace") for word in known]
            is_raw = preprocessed is not None and key not in preprocessed
            if words and value not in words and is_raw and not _has_value(model, key, value):
                problem = (
                    f"slicing_specs: the domain of {key!r} does not have {value!r}"
                    f"{did_you_mean(value, words)}, so that TFMA leaves the slice out"
                )
                allows = feature.distribution_constraints.min_domain_mass < 1
                yield (warn if allows else fail)(problem, f"the domain is {', '.join(words[:12])}")


def _has_value(model: ModelUnderTest, key: str, value: str) -> bool:
    """Whether one of the contract's examples has a text as a value of a feature."""
    rows = [example.features.feature for example in parsed(model.evidence.eval_rows)]
    return any(value.encode() in row[key].bytes_list.value for row in rows if key in row)


@check(needs="inputs_read signatures_exist", decided_by="code")
def eval_signatures(model: ModelUnderTest) -> Findings:
    """The model has the signatures, inputs and outputs that the eval config refers to.

    The Evaluator calls the signature that `model_specs` names, picks outputs by name and reads the
    label. It fails on names that the model does not have.

    Without an eval config, signatures of which an Evaluator downstream can call none are a warning.

    Example: `signature_name: "serving_defualt"`; a `prediction_key` that no output has.
    """
    if model.evidence.eval_config is None:
        if model.contract.evaluates:
            yield from _inputs_of_no_examples(model)
        raise Skip("the contract names no eval config")
    # TFMA also calls attributes of the exported object, which is the first of its graph.
    roots = model.meta_graph.object_graph_def.nodes[:1]
    attributes = {child.local_name for root in roots for child in root.children}
    known = attributes.union(model.signatures)
    for spec in model.evidence.eval_config.model_specs:
        if spec.is_baseline:
            continue
        name = _called(model, spec)
        functions = spec.preprocessing_function_names
        preprocessing = "preprocessing_function_names"
        field = "model_specs.signature_name"
        called = [(f"{preprocessing} has", function, preprocessing) for function in functions]
        for what, function, place in (*called, ("the Evaluator calls signature", name, field)):
            if function not in known:
                yield fail(
                    f"{what} {function!r}; the model has {list(model.signatures)}",
                    f"export it, or name another one in {place}",
                )
        if name in model.signatures:
            yield from _labels(model, spec, name)
            yield from _inputs(model, spec, name)
            yield from _outputs(model, spec, name)


def _called(model: ModelUnderTest, spec: Any) -> str:
    """Returns the signature that the Evaluator calls for a model of its config."""
    default = "predict" if "predict" in model.signatures else "serving_default"
    return spec.signature_name or default


def _labels(model: ModelUnderTest, spec: Any, name: str) -> Findings:
    """Warns of labels that are inputs; of those that the contract names, `without_label` does."""
    signature = model.signatures[name]
    needed = {key for key, feature in signature.features.items() if feature.is_required}
    labels = {spec.label_key, *spec.label_keys.values()} - model.evidence.label_keys
    for label in sorted(labels & needed) if not spec.preprocessing_function_names else ():
        yield warn(
            f"label_key {label!r} is a feature that signature {name!r} needs",
            "name the label that the model predicts: the contract has "
            f"{sorted(model.evidence.label_keys)}",
            may_be_meant=True,
        )


def _inputs(model: ModelUnderTest, spec: Any, name: str) -> Findings:
    signature = model.signatures[name]
    features = _available(model, spec)
    if signature.is_serialized or features is None:
        return
    for key, tensor in signature.inputs.items():
        feature = feature_of(key, features)
        subject = f"input {key!r} of signature {name!r}"
        if feature not in features:
            yield fail(
                f"{subject} is not a feature: TFMA feeds inputs by name, and would pass "
                "serialized examples instead",
                "name it like the feature, or evaluate a signature that takes serialized "
                "examples (model_specs.signature_name)",
            )
        elif features[feature] not in ("", tensor.dtype.name):
            yield fail(
                f"{subject} is {tensor}, the feature is {features[feature]}",
                "cast inside the signature: TFMA does not cast",
            )


def _inputs_of_no_examples(model: ModelUnderTest) -> Findings:
    """Warns of an Evaluator, whose config is unknown, if no signature takes what it reads.

    A signature of transformed features is fine beside one that transforms serialized examples:
    `preprocessing_function_names` may name it.
    """
    features = model.evidence.feature_dtypes
    if features is None:
        return
    for signature in model.signatures.values():
        others = [key for key in signature.inputs if feature_of(key, features) not in features]
        if (signature.is_serialized and signature.parses) or not others:
            return
    inputs = {name: list(signature.inputs)[:5] for name, signature in model.signatures.items()}
    if inputs:
        yield warn(
            "no signature takes serialized examples, or features of the raw ones alone: the "
            "Evaluator downstream fails, or silently scores serialized examples as a text; "
            f"inputs are {inputs}",
            "export a signature that takes serialized examples (training.export_model); name the "
            "Evaluator's eval_config to have all that it needs checked before publishing",
            may_be_meant=True,
        )


def _available(model: ModelUnderTest, spec: Any) -> dict[str, str] | None:
    features = model.evidence.feature_dtypes
    if features is None:
        return None
    if model.evidence.evaluates_transformed:
        return model.evidence.transformed_dtypes
    for name in spec.preprocessing_function_names:
        if name not in model.signatures:
            return None  # an attribute, whose outputs are unknown
        outputs = model.signatures[name].outputs
        features = {**features, **{key: tensor.dtype.name for key, tensor in outputs.items()}}
    return features


def _outputs(model: ModelUnderTest, spec: Any, name: str) -> Findings:
    outputs = list(model.signatures[name].outputs)
    metrics_specs = model.evidence.eval_config.metrics_specs
    for key in sorted({key for metrics in metrics_specs for key in metrics.output_names}):
        if key not in outputs and key not in spec.label_keys:
            yield fail(
                f"metrics_specs.output_names has {key!r}; signature {name!r} has {outputs}",
                "name an output, or leave output_names out if there is one",
            )
    if len(outputs) < 2:
        return
    expected = list(filter(None, [spec.prediction_key, *spec.prediction_keys.values()]))
    missing = [key for key in expected if key not in outputs]
    named = expected or any(metrics.output_names for metrics in metrics_specs)
    subject = f"signature {name!r} has the outputs {outputs}"
    problem = ""
    if missing:
        problem = f"prediction_key {missing[0]!r} is not an output"
    elif not named and _KNOWN_OUTPUTS.isdisjoint(outputs):
        problem = "the eval config does not name the prediction"
    if problem:
        yield fail(
            f"{problem}: {subject}",
            "set model_specs.prediction_key, or metrics_specs.output_names for several heads",
        )


@check(after="parity", needs="loads devices eval_signatures")
def eval_rehearsal(model: ModelUnderTest) -> Findings:
    """TFMA evaluates the model on a few examples, and every metric is a number.

    TFMA itself evaluates the model on at most 20 raw examples with Beam's in-memory runner, which
    may take 5 s. An error that would end the Evaluator ends the rehearsal.

    Example: an AUC of scores that are not probabilities; a metric that is NaN; the
    `CategoricalAccuracy` of labels that are no one-hot vectors; a threshold of a metric that TFMA
    reports under another name.
    """
    if model.evidence.eval_config is None or not model.evidence.raw_records:
        raise Skip("needs an eval config and raw examples in the contract")
    if model.evidence.evaluates_transformed:
        raise Skip("the Evaluator reads the output of Transform, by its label")
    try:
        metrics, unmet = _evaluate(model)
    except Exception as error:
        if any(is_elsewhere(error, metric) for metric in _metrics_of(model)):
            raise Skip(str(error)) from error
        yield fail(
            f"the Evaluator would fail: {_reason(error)}",
            "correct the eval config or the signature that it calls",
        )
        return
    model.facts["rehearsed_metrics"] = {k: v for k, v in metrics.items() if math.isfinite(v)}
    for name, value in sorted(metrics.items()):
        if not math.isfinite(value):
            message = f"metric {name!r} is {value} on {_EXAMPLES} examples"
            if _has_broken_prediction(model):
                yield fail(
                    message,
                    "look for NaN and infinities among the predictions: TFMA reports no error",
                )
            else:
                yield warn(
                    message,
                    "fine if it is undefined for so few, like the precision without a predicted "
                    "positive; otherwise look for NaN among the labels: TFMA reports no error",
                )
    if unmet:
        yield warn(
            f"a threshold of {', '.join(map(repr, unmet))}, for which TFMA reports no number: "
            "the Evaluator blesses no model",
            "put the threshold into the own entry of a metric that is one number; instead of a "
            "top_k or class_id in its config, use metrics_specs { binarize { ... } }",
        )
    yield from _beyond_one(model)
    yield from _of_one_class(model)
    yield note(", ".join(f"{name} = {value:.4g}" for name, value in sorted(metrics.items())))


def _has_broken_prediction(model: ModelUnderTest) -> bool:
    """Whether an output that the metrics are of is NaN or infinite; any, if none is named."""
    metrics_specs = model.evidence.eval_config.metrics_specs
    heads = {name for metrics in metrics_specs for name in metrics.output_names}
    for spec, outputs in _evaluated(model):
        named = heads | {spec.prediction_key, *spec.prediction_keys.values()}
        meant = outputs.keys() & named or outputs.keys() & _KNOWN_OUTPUTS or outputs.keys()
        if any(key in meant for _, key, _ in not_finite(dict(outputs))):
            return True
    return False


def _evaluate(model: ModelUnderTest) -> tuple[dict[str, float], list[str]]:
    """Evaluates a model on the first of its records, with its eval config but for the baseline.

    Returns:
        Metric → value, of the metrics that are one number, over all examples; and the metrics
        that have a threshold and no value.

    Raises:
        Exception: the Evaluator would end with it.
    """
    import tensorflow as tf
    import tensorflow_model_analysis as tfma
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.utils.shared import Shared
    from tensorflow_model_analysis.utils import config_util

    completed = config_util.update_eval_config_with_defaults
    config = completed(model.evidence.eval_config, has_baseline=False, rubber_stamp=True)
    config_util.verify_eval_config(config)
    model.release()  # TFMA loads the model itself
    make = tfma.default_eval_shared_model
    path = str(model.directory)
    names = [spec.name for spec in config.model_specs]  # two are one model, by two signatures
    shared = [make(path, model_name=name, eval_config=config) for name in names]
    with ScratchFolder("evaluation-") as folder:
        examples = os.path.join(folder, "examples")
        with tf.io.TFRecordWriter(examples) as writer:
            for record in _rehearsed(model):
                writer.write(record)
        tfma.run_model_analysis(
            eval_shared_model=shared if len(shared) > 1 else shared[0],
            eval_config=config,
            data_location=examples,
            output_path=folder,
            pipeline_options=PipelineOptions(_BEAM),
            schema=model.evidence.schema,
        )
        Shared().acquire(set)  # Beam keeps what was acquired last: the model
        found = dict(_numbers(tfma.load_metrics(folder)))
        # A slice may be too small only here, where the examples are few.
        is_whole = config.options.min_slice_size.value <= 1
        bounded = tfma.metrics.metric_thresholds_from_metrics_specs
        if not is_whole or not bounded(config.metrics_specs, eval_config=config):
            return found, []
        validated = tfma.load_validation_result(folder).metric_validations_per_slice
        failures = (failure for of_slice in validated for failure in of_slice.failures)
        unmet = {_name_of(f.metric_key) for f in failures if not f.HasField("metric_value")}
        return found, sorted(unmet)


def _rehearsed(model: ModelUnderTest) -> list[bytes]:
    """Returns the first examples, and before them any with the extremes of a label, such as a class
    beyond those of the model, or without a feature that others have.
    """
    labels: dict[str, list[tuple[float, int]]] = {}
    examples = parsed(model.evidence.eval_rows)
    present = list(map(filled, examples))
    names = set().union(*present)
    lacking = {name: row for row in range(len(present))[::-1] for name in names - present[row]}
    for row, example in enumerate(examples):
        features = example.features.feature
        for key in model.evidence.label_keys & features.keys():
            values = (*features[key].int64_list.value, *features[key].float_list.value)
            labels.setdefault(key, []).extend((value, row) for value in values)
    extremes = [choose(values)[1] for values in labels.values() if values for choose in (min, max)]
    rows = dict.fromkeys([*extremes, *sorted(lacking.values()), *range(len(examples))])
    return [model.evidence.eval_rows[row] for row in sorted(list(rows)[:_EXAMPLES])]


def _numbers(written: Iterable[Any]) -> Iterator[tuple[str, float]]:
    """Yields the metrics over all examples, not those of slices or of compared slices."""
    for result in written:
        if result.HasField("cross_slice_key") or result.slice_key.single_slice_keys:
            continue
        for metric in result.metric_keys_and_values:
            if metric.value.WhichOneof("type") == "double_value":
                yield _name_of(metric.key), metric.value.double_value.value


def _name_of(key: Any) -> str:
    of = "".join(f"@{field.name}={value.value}" for field, value in key.sub_key.ListFields())
    return "/".join(filter(None, (key.model_name, key.output_name, key.name + of)))


def _beyond_one(model: ModelUnderTest) -> Findings:
    """Warns of metrics that take probabilities if the model returns other numbers."""
    named = {m.class_name for m in _metrics_of(model) if not _AS_IT_IS.search(m.config)}
    if not (wanting := sorted(named & _OF_PROBABILITIES)):
        return
    for spec, outputs in _evaluated(model):
        for key, values in sorted(outputs.items()):
            is_meant = key == spec.prediction_key or len(outputs) == 1
            if not is_meant or not is_float(values):
                continue
            least, greatest = extent(values)
            if greatest > 1 or least < 0:
                yield warn(
                    f"{', '.join(wanting)} takes probabilities, output {key!r} has values "
                    f"from {least:.3g} to {greatest:.3g}: TFMA silently counts those below "
                    "0 as 0, and those above 1 as 1",
                    "evaluate a signature that applies the sigmoid",
                    may_be_meant=True,
                )


def _metrics_of(model: ModelUnderTest) -> list[Any]:
    return [m for spec in model.evidence.eval_config.metrics_specs for m in spec.metrics]


def _evaluated(model: ModelUnderTest) -> Iterator[tuple[Any, Outputs]]:
    """Yields each model of the eval config but the baseline, with the outputs of its signature."""
    for spec in model.evidence.eval_config.model_specs:
        if not spec.is_baseline:
            scored = model.scores.get(_called(model, spec))
            yield spec, {} if scored is None else scored.batch


def _of_one_class(model: ModelUnderTest) -> Findings:
    """Warns of metrics that find a class among several numbers, and get one number: it is class 0.

    TFMA reports no error. A model that is always right has the accuracy of answering class 0.
    """
    metrics_specs = model.evidence.eval_config.metrics_specs
    for (spec, outputs), metrics in itertools.product(_evaluated(model), metrics_specs):
        of_others = metrics.model_names and spec.name not in metrics.model_names
        if of_others or metrics.HasField("binarize") or metrics.HasField("aggregate"):
            continue
        named = {m.class_name for m in metrics.metrics if m.module.split(".")[0] in _OF_LIBRARIES}
        for name in metrics.output_names or [""]:
            key = spec.prediction_keys.get(name) or spec.prediction_key or name
            key = key if len(outputs) > 1 else next(iter(outputs), key)
            values = outputs.get(key)
            is_single = values is not None and values.ndim and 0 < len(values) == values.size
            if is_single and values.dtype != object:
                yield from _of_single(named & _OF_SCORES, f"output {key!r}", "a score per class")
            label = spec.label_keys.get(name) or spec.label_key
            is_raw = named & _OF_ONE_HOT and not spec.preprocessing_function_names
            if is_raw and _is_class(model, label):
                yield from _of_single(named & _OF_ONE_HOT, f"label {label!r}", "a one-hot label")


def _of_single(metrics: Iterable[str], what: str, wanted: str) -> Findings:
    if named := ", ".join(sorted(metrics)):
        yield warn(
            f"{named} takes {wanted}, {what} is one number: TFMA silently takes it as class 0",
            "with classes as labels, use SparseCategoricalAccuracy and an output of a score per "
            "class; with one score, use BinaryAccuracy",
            may_be_meant=True,
        )


def _is_class(model: ModelUnderTest, label: str) -> bool:
    """Whether a label of the examples is always one number."""
    features = [example.features.feature for example in parsed(model.evidence.eval_rows)]
    present = [each[label] for each in features if label in each]
    numbers = [len(f.int64_list.value) + len(f.float_list.value) for f in present]
    return bool(numbers) and set(numbers) == {1}


def _reason(error: BaseException) -> str:
    """Returns the innermost cause: Beam's runner raises errors with whole stack traces."""
    while _OF_ROW.match(str(error)) and (cause := error.__cause__ or error.__context__):
        error = cause
    inner = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception): .+)$", str(error), re.MULTILINE)
    return (inner[-1] if inner else reason_of(error))[:600]
