"""Can the Evaluator call the model as its config says?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail, skip
from generic_trainer.validation._tensors import describe_info, dtype_of, is_serialized
from generic_trainer.validation._tfma_features import feature_dtypes

__all__ = ["eval_signatures"]

# What TFMA picks by itself from several outputs, in this order.
_KNOWN_OUTPUTS = ("scores", "outputs", "predictions", "logistic", "probabilities", "logits")


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
        elif name not in _attributes(model):
            yield fail(
                f"the Evaluator calls signature {name!r}; the model has {list(model.signatures)}",
                "export that signature or set model_specs.signature_name",
            )


def _default_signature(model: ModelUnderTest) -> str:
    return "predict" if "predict" in model.signatures else "serving_default"


def _attributes(model: ModelUnderTest) -> set[str]:
    """Names on the exported object, which TFMA may also call."""
    objects = model.meta_graph.object_graph_def.nodes
    return {child.local_name for child in objects[0].children} if objects else set()


def _preprocessing(model: ModelUnderTest, spec: Any) -> Iterator[Finding]:
    known = set(model.signatures) | _attributes(model)
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
    features = feature_dtypes(model)
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
    wanted = list(filter(None, [spec.prediction_key, *spec.prediction_keys.values()]))
    if len(outputs) < 2:
        return
    missing = [key for key in wanted if key not in outputs]
    if missing:
        yield fail(
            f"prediction_key {missing[0]!r} is not an output of signature {name!r}, which has "
            f"{outputs}",
            "set prediction_key to one of the outputs",
        )
    elif not wanted and not _picks_output(model, outputs):
        yield fail(
            f"signature {name!r} has the outputs {outputs}, and the eval config does not say "
            "which one is the prediction",
            "set model_specs.prediction_key, or metrics_specs.output_names for several heads",
        )


def _picks_output(model: ModelUnderTest, outputs: list[str]) -> bool:
    named = any(spec.output_names for spec in model.eval_config.metrics_specs)
    return named or bool(set(outputs) & set(_KNOWN_OUTPUTS))
