"""Checks of the model against the config of the Evaluator downstream."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generic_trainer.validation._check import Finding, check, fail, note, skip
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._scoring import first_line
from generic_trainer.validation._signatures import describe_info, dtype_of, is_serialized
from generic_trainer.validation._tfma_lint import lint_findings
from generic_trainer.validation._tfma_rehearsal import evaluate

# What TFMA picks by itself from several outputs, in this order.
_KNOWN_OUTPUTS = ("scores", "outputs", "predictions", "logistic", "probabilities", "logits")
_OF_SCHEMA = {1: "string", 2: "int64", 3: "float32"}  # schema_pb2.FeatureType
_OF_EXAMPLE = {"bytes_list": "string", "int64_list": "int64", "float_list": "float32"}
_REHEARSED = 20  # examples


@check("eval_config", needs=("inputs_read",))
def eval_config(model: ModelUnderTest) -> Iterator[Finding]:
    """Labels, weights, slices, metrics and thresholds of the eval config make sense."""
    if model.eval_config is None:
        yield skip("the contract names no eval config")
        return
    features = _feature_dtypes(model)
    known = None if features is None else features.keys()
    yield from lint_findings(model.eval_config, known, _preprocessed(model))


def _preprocessed(model: ModelUnderTest) -> set[str] | None:
    """Returns what the preprocessing functions return; None unless all are signatures."""
    specs = model.eval_config.model_specs
    functions = {name for spec in specs for name in spec.preprocessing_function_names}
    if not functions <= model.signatures.keys():
        return None
    return {output for name in functions for output in model.signatures[name].outputs}


def _feature_dtypes(model: ModelUnderTest) -> dict[str, str] | None:
    """Returns feature → dtype, from the schema or else from the examples; None without either."""
    if model.schema is not None:
        return {feature.name: _OF_SCHEMA.get(feature.type, "") for feature in model.schema.feature}
    if not model.records:
        return None
    import tensorflow as tf

    dtypes: dict[str, str] = {}
    for record in model.records:
        for name, feature in tf.train.Example.FromString(record).features.feature.items():
            kind = feature.WhichOneof("kind")
            if kind is not None:
                dtypes[name] = _OF_EXAMPLE[kind]
    return dtypes


@check("eval_signatures", needs=("inputs_read", "signatures_exist"))
def eval_signatures(model: ModelUnderTest) -> Iterator[Finding]:
    """The model has the signatures, inputs and outputs that the eval config refers to."""
    if model.eval_config is None:
        yield skip("the contract names no eval config")
        return
    for spec in model.eval_config.model_specs:
        if spec.is_baseline:
            continue
        yield from _preprocessing(model, spec)
        name = spec.signature_name or _default_signature(model)
        if name in model.signatures:
            yield from _inputs(model, spec, name)
            yield from _outputs(model, spec, name)
        elif name not in _exported_attributes(model):
            yield fail(
                f"the Evaluator calls signature {name!r}; the model has {list(model.signatures)}",
                "export that signature or set model_specs.signature_name",
            )


def _default_signature(model: ModelUnderTest) -> str:
    return "predict" if "predict" in model.signatures else "serving_default"


def _exported_attributes(model: ModelUnderTest) -> set[str]:
    """Returns the names on the exported object, which TFMA may also call."""
    objects = model.meta_graph.object_graph_def.nodes
    return {child.local_name for child in objects[0].children} if objects else set()


def _preprocessing(model: ModelUnderTest, spec: Any) -> Iterator[Finding]:
    known = set(model.signatures) | _exported_attributes(model)
    for name in spec.preprocessing_function_names:
        if name not in known:
            yield fail(
                f"preprocessing_function_names has {name!r}; the model has the signatures "
                f"{list(model.signatures)} and no attribute of that name",
                "export it, e.g. transform_features by generic_trainer.training.export_model",
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
    expected = list(filter(None, [spec.prediction_key, *spec.prediction_keys.values()]))
    if len(outputs) < 2:
        return
    missing = [key for key in expected if key not in outputs]
    if missing:
        yield fail(
            f"prediction_key {missing[0]!r} is not an output of signature {name!r}, which has "
            f"{outputs}",
            "set prediction_key to one of the outputs",
        )
    elif not expected and not _picks_output(model, outputs):
        yield fail(
            f"signature {name!r} has the outputs {outputs}, and the eval config does not say "
            "which one is the prediction",
            "set model_specs.prediction_key, or metrics_specs.output_names for several heads",
        )


def _picks_output(model: ModelUnderTest, outputs: list[str]) -> bool:
    named = any(spec.output_names for spec in model.eval_config.metrics_specs)
    return named or bool(set(outputs) & set(_KNOWN_OUTPUTS))


@check("eval_rehearsal", needs=("loads", "devices", "eval_signatures"))
def eval_rehearsal(model: ModelUnderTest) -> Iterator[Finding]:
    """TFMA evaluates the model on a few examples, and every metric is a number."""
    if model.eval_config is None or not model.records:
        yield skip("needs an eval config and examples in the contract")
        return
    if model.contract.examples_transformed:
        yield skip("the examples at hand are transformed ones; name raw ones in the contract")
        return
    model.release()
    with tempfile.TemporaryDirectory() as folder:
        try:
            metrics = evaluate(
                model.eval_config,
                str(model.directory),
                model.contract.base_model,
                model.records[:_REHEARSED],
                model.schema,
                Path(folder) / "result",
            )
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
                f"metric {name!r} is {value} on {_REHEARSED} examples",
                "look for NaN among the predictions and labels; TFMA reports it without an error",
            )
    yield note(", ".join(f"{name} = {value:.4g}" for name, value in sorted(metrics.items())))


def _reason(error: Exception) -> str:
    """Returns the innermost cause: Beam's runner hands errors on as the text of stack traces."""
    inner = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception): .+)$", str(error), re.MULTILINE)
    return (inner[-1] if inner else first_line(error))[:600]
