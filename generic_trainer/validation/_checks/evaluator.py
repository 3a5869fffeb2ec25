"""Checks of the model against the config of the Evaluator downstream."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from generic_trainer._core.texts import did_you_mean, reason_of
from generic_trainer.validation._check import Finding, check, fail, note, skip
from generic_trainer.validation._evaluation import EXAMPLES, evaluate
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._schema_rows import DTYPE_OF_LIST, domain_words
from generic_trainer.validation._scoring import is_float
from generic_trainer.validation._signatures import describe_info, dtype_of, is_serialized
from generic_trainer.validation._tfma_lint import lint_findings

# What TFMA picks by itself from several outputs.
_KNOWN_OUTPUTS = {"scores", "outputs", "predictions", "logistic", "probabilities", "logits"}
_OF_SCHEMA = {1: "string", 2: "int64", 3: "float32"}  # schema_pb2.FeatureType
_OF_PROBABILITIES = {"AUC", "AUCPrecisionRecall", "BinaryCrossEntropy", "CalibrationPlot"}


@check("eval_config", needs=("inputs_read",))
def eval_config(model: ModelUnderTest) -> Iterator[Finding]:
    """Labels, weights, slices, metrics and thresholds of the eval config make sense.

    The Evaluator runs hours later, and what is wrong with its configuration is an error there, or a
    metric that nobody checks. What can be known without the model is known here, before the
    training.

    Example: a threshold without a direction; a slice by a feature that the schema does not have.
    """
    if model.eval_config is None:
        yield skip("the contract names no eval config")
        return
    preprocessed = None  # unless all preprocessing functions are signatures
    specs = model.eval_config.model_specs
    functions = {name for spec in specs for name in spec.preprocessing_function_names}
    if functions <= model.signatures.keys():
        preprocessed = {key for name in functions for key in model.signatures[name].outputs}
    yield from lint_findings(model.eval_config, _feature_dtypes(model), preprocessed)
    yield from _values_of_slices(model)


def _values_of_slices(model: ModelUnderTest) -> Iterator[Finding]:
    """Yields slices on words that the schema's domain of a feature does not have."""
    schema = model.schema
    domains = {f.name: domain_words(schema, f) for f in schema.feature} if schema else {}
    for spec in model.eval_config.slicing_specs:
        for key, value in sorted(spec.feature_values.items()):
            if domains.get(key) and value.encode() not in domains[key]:
                words = [word.decode(errors="replace") for word in domains[key]]
                yield fail(
                    f"slicing_specs has the value {value!r} of {key!r}, which its domain in the "
                    f"schema does not have{did_you_mean(value, words)}: TFMA silently leaves the "
                    "slice out",
                    f"the domain is {', '.join(words[:12])}",
                )


def _feature_dtypes(model: ModelUnderTest) -> dict[str, str] | None:
    """Returns feature → dtype, from the schema or else from the examples; None without either."""
    if model.schema is not None:
        return {feature.name: _OF_SCHEMA.get(feature.type, "") for feature in model.schema.feature}
    if not model.records:
        return None
    import tensorflow as tf

    examples = map(tf.train.Example.FromString, model.records)
    return {
        name: DTYPE_OF_LIST[feature.WhichOneof("kind")]
        for example in examples
        for name, feature in example.features.feature.items()
        if feature.WhichOneof("kind") is not None
    }


@check("eval_signatures", needs=("inputs_read", "signatures_exist"))
def eval_signatures(model: ModelUnderTest) -> Iterator[Finding]:
    """The model has the signatures, inputs and outputs that the eval config refers to.

    The Evaluator calls the signature that `model_specs` names, picks outputs by name and reads the
    label. Names that the model does not have end it.

    Example: `signature_name: "serving_defualt"`; a `prediction_key` that no output has.
    """
    if model.eval_config is None:
        yield skip("the contract names no eval config")
        return
    default = "predict" if "predict" in model.signatures else "serving_default"
    # TFMA also calls attributes of the exported object, which is the first of its graph.
    roots = model.meta_graph.object_graph_def.nodes[:1]
    attributes = {child.local_name for root in roots for child in root.children}
    known = attributes.union(model.signatures)
    for spec in model.eval_config.model_specs:
        if spec.is_baseline:
            continue
        for name in spec.preprocessing_function_names:
            if name not in known:
                yield fail(
                    f"preprocessing_function_names has {name!r}; the model has the signatures "
                    f"{list(model.signatures)} and no attribute of that name",
                    "export it, e.g. transform_features by generic_trainer.training.export_model",
                )
        name = spec.signature_name or default
        if name in model.signatures:
            yield from _inputs(model, spec, name)
            yield from _outputs(model, spec, name)
        elif name not in known:
            yield fail(
                f"the Evaluator calls signature {name!r}; the model has {list(model.signatures)}",
                "export that signature or set model_specs.signature_name",
            )


def _inputs(model: ModelUnderTest, spec: Any, name: str) -> Iterator[Finding]:
    signature = model.signatures[name]
    features = _available(model, spec)
    if is_serialized(signature) or features is None:
        return
    for key, info in sorted(signature.inputs.items()):
        feature = key if key in features else key.removesuffix("_input")
        if feature not in features:
            yield fail(
                f"input {key!r} of signature {name!r} is not a feature: TFMA feeds inputs by name "
                "and would pass serialized examples instead",
                "name the inputs like the features, or evaluate a signature that takes serialized "
                "examples (model_specs.signature_name)",
            )
        elif features[feature] not in ("", dtype_of(info).name):
            yield fail(
                f"input {key!r} of signature {name!r} is {describe_info(info)}, the feature is "
                f"{features[feature]}: TFMA does not cast",
                "cast inside the signature, and let it take the feature's own dtype",
            )


def _available(model: ModelUnderTest, spec: Any) -> dict[str, str] | None:
    features = _feature_dtypes(model)
    if features is None:
        return None
    for name in spec.preprocessing_function_names:
        if name not in model.signatures:
            return None  # an attribute, whose outputs the graph does not tell
        outputs = model.signatures[name].outputs
        features = {**features, **{key: dtype_of(info).name for key, info in outputs.items()}}
    return features


def _outputs(model: ModelUnderTest, spec: Any, name: str) -> Iterator[Finding]:
    outputs = sorted(model.signatures[name].outputs)
    metrics_specs = model.eval_config.metrics_specs
    for key in sorted({key for each in metrics_specs for key in each.output_names}):
        if key not in outputs and key not in spec.label_keys:
            yield fail(
                f"metrics_specs.output_names has {key!r}; signature {name!r} has {outputs}",
                "name an output, or leave output_names out where there is one output",
            )
    if len(outputs) < 2:
        return
    expected = list(filter(None, [spec.prediction_key, *spec.prediction_keys.values()]))
    missing = [key for key in expected if key not in outputs]
    named = any(metrics.output_names for metrics in metrics_specs)
    if missing:
        yield fail(
            f"prediction_key {missing[0]!r} is not an output of signature {name!r}, which has "
            f"{outputs}",
            "set prediction_key to one of the outputs",
        )
    elif not expected and not named and _KNOWN_OUTPUTS.isdisjoint(outputs):
        yield fail(
            f"signature {name!r} has the outputs {outputs}, and the eval config does not say "
            "which one is the prediction",
            "set model_specs.prediction_key, or metrics_specs.output_names for several heads",
        )


@check("eval_rehearsal", needs=("loads", "devices", "eval_signatures"))
def eval_rehearsal(model: ModelUnderTest) -> Iterator[Finding]:
    """TFMA evaluates the model on a few examples, and every metric is a number.

    TFMA itself evaluates the model on a few raw examples, in the process that checks. What would
    end the Evaluator ends the rehearsal, in seconds.

    Example: an AUC of scores that are no probabilities; a metric that is NaN.
    """
    if reason := why_not_rehearsed(model):
        yield skip(reason)
        return
    try:
        metrics = evaluate(model)
    except Exception as error:
        yield fail(
            f"the Evaluator would fail: {_reason(error)}",
            "correct the eval config or the signature that it calls; the other checks on "
            "eval_config and eval_signatures name what is known to go wrong",
        )
        return
    model.facts["rehearsed_metrics"] = {k: v for k, v in metrics.items() if math.isfinite(v)}
    for name, value in sorted(metrics.items()):
        if not math.isfinite(value):
            yield fail(
                f"metric {name!r} is {value} on {EXAMPLES} examples",
                "look for NaN among the predictions and labels; TFMA reports it without an error",
            )
    yield from _beyond_one(model)
    yield note(", ".join(f"{name} = {value:.4g}" for name, value in sorted(metrics.items())))


def why_not_rehearsed(model: ModelUnderTest) -> str | None:
    """Returns why nothing is evaluated, None where something is."""
    if model.eval_config is None or not model.records:
        return "needs an eval config and examples in the contract"
    if model.contract.examples_transformed:
        return "the examples at hand are transformed ones; name raw ones in the contract"
    return None


def _beyond_one(model: ModelUnderTest) -> Iterator[Finding]:
    """Warns of metrics that take probabilities where the model gives something else."""
    metrics = {m.class_name for spec in model.eval_config.metrics_specs for m in spec.metrics}
    if not (wanting := sorted(metrics & _OF_PROBABILITIES)):
        return
    specs = [spec for spec in model.eval_config.model_specs if not spec.is_baseline]
    for spec in specs:
        scored = model.scores.get(spec.signature_name or "serving_default")
        outputs = scored.batch if scored is not None else {}
        for key, values in sorted(outputs.items()):
            is_meant = key == spec.prediction_key or len(outputs) == 1
            if is_meant and is_float(values) and (np.nanmax(values) > 1 or np.nanmin(values) < 0):
                yield Finding(
                    "warn",
                    f"{', '.join(wanting)} takes probabilities, and output {key!r} has values "
                    f"from {np.nanmin(values):.3g} to {np.nanmax(values):.3g}: TFMA silently "
                    "counts them as 0 and 1",
                    "evaluate a signature that applies the sigmoid",
                    may_be_meant=True,
                )


def _reason(error: Exception) -> str:
    """Returns the innermost cause: Beam's runner hands errors on as the text of stack traces."""
    inner = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception): .+)$", str(error), re.MULTILINE)
    return (inner[-1] if inner else reason_of(error))[:600]
