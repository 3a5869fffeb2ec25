"""Checks of models in other formats, beside a SavedModel or instead of one; nothing is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generic_trainer._core.texts import did_you_mean
from generic_trainer.validation._check import Finding, check, fail, note, skip, warn
from generic_trainer.validation._formats.detected import Artifact
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._schema_rows import dtype_in_schema
from generic_trainer.validation._signatures import dtype_of

_NOTHING = "no file is a model in another format"
_DAMAGED = "write the file again, and copy all of it; delete it if it is no model"
_MAX_SHOWN = 6
# TFMA's names of formats, and the file that it reads for each.
_TFMA_FILES = {"tf_lite": "tflite", "tf_js": "model.json"}
_LOADS_SAVED_MODELS = "it loads a SavedModel: export one as well, or take the component out"


@check("other_formats", needs=("presence",))
def other_formats(model: ModelUnderTest) -> Iterator[Finding]:
    """Every model in another format is whole, and its weights are numbers.

    TFX's rewriters write TFLite and TensorFlow.js beside or instead of a SavedModel, and models of
    other libraries go through the same Pusher; a file that was cut off is found there by nobody.

    Example: a `.tflite` file of half its length, or an ONNX model whose weights are NaN.
    """
    if not model.artifacts:
        yield skip(_NOTHING)
        return
    model.facts["formats"] = [
        f"{each.path}: {each.contents.described()}" for each in model.artifacts if each.contents
    ]
    told: set[str] = set()
    for artifact in model.artifacts:
        if artifact.contents is None:
            if artifact.problem not in told:
                yield _damaged(model, artifact)
            told.add(artifact.problem)
            continue
        yield note(f"{artifact.path}: {artifact.contents.described()}")
        for flaw, remedy in artifact.contents.flaws:
            yield fail(f"{artifact.path}: {flaw}", remedy)


def _damaged(model: ModelUnderTest, artifact: Artifact) -> Finding:
    # Beside a SavedModel a name is no promise.
    is_certain = not (artifact.is_by_name and model.is_saved_model)
    message = f"{artifact.path}: {artifact.problem}"
    return Finding("fail" if is_certain else "warn", message, _DAMAGED, may_be_meant=True)


@check("embedded_code", needs=("presence",))
def embedded_code(model: ModelUnderTest) -> Iterator[Finding]:
    """No file runs code on whoever loads it, as far as what it names is known.

    A pickle and a Keras file with a Lambda layer are programs, which whoever loads them runs. They
    are never loaded here: what they would import is read from their bytes.

    Example: a pickle that imports `os.system`. `ServingContract(allowed_globals=("package",))`
    accepts a package.
    """
    if not model.artifacts:
        yield skip(_NOTHING)
    for artifact, contents in model.readable_artifacts:
        allowed = model.contract.allowed_ops
        refused = [name for name in contents.refused if name not in allowed]
        if refused:
            yield fail(
                f"{artifact.path} would run {_listed(refused)} on whoever loads it",
                "do not load it before you know where it is from; if it is yours and must be so: "
                f"contract=ServingContract(allowed_globals=({refused[0]!r},))",
            )
        if contents.unknown:
            names = contents.unknown
            yield warn(
                f"{artifact.path} needs code that is not in it or nobody has looked at: "
                f"{_listed(names)}",
                "whoever loads it must have the same code, and runs it; if that is so: "
                f"contract=ServingContract(allowed_globals=({_package(names[0])!r},))",
            )


def _listed(names: Any) -> str:
    return ", ".join(names[:_MAX_SHOWN]) + (", ..." if len(names) > _MAX_SHOWN else "")


def _package(name: str) -> str:
    return re.split(r"[.>]", name)[0]


@check("format_consumers", needs=("presence",))
def format_consumers(model: ModelUnderTest) -> Iterator[Finding]:
    """Every consumer that the pipeline names can read the format of the export.

    BulkInferrer and InfraValidator load SavedModels and nothing else; before them any other format
    fails only after the training has been paid for.

    Example: `model.keras` alone in the export, and a BulkInferrer in the pipeline.
    """
    if not model.is_other_format:
        yield skip("the export is a SavedModel")
        return
    kinds = ", ".join(str(each.path) for each, _ in model.readable_artifacts[:_MAX_SHOWN])
    if model.contract.infers_in_bulk:
        yield fail(f"BulkInferrer cannot read {kinds}", _LOADS_SAVED_MODELS)
    if model.contract.validates_infra:
        yield fail(f"InfraValidator cannot read {kinds}", _LOADS_SAVED_MODELS)
    if model.contract.evaluates:
        yield from _for_the_evaluator(model, kinds)


def _for_the_evaluator(model: ModelUnderTest, kinds: str) -> Iterator[Finding]:
    config = model.eval_config
    specs = [] if config is None else config.model_specs
    types = {spec.model_type for spec in specs if spec.model_type}
    for missing in sorted(kind for kind in types if kind in _TFMA_FILES):
        if Path(_TFMA_FILES[missing]) not in model.files:
            yield fail(
                f"the eval config says model_type {missing!r}, for which TFMA reads the file "
                f"{_TFMA_FILES[missing]!r}, and the export has {kinds}",
                f"write the model to fn_args.serving_model_dir/{_TFMA_FILES[missing]}, as TFX's "
                "rewriter does by default",
            )
    is_readable = any(Path(name) in model.files for name in _TFMA_FILES.values())
    if not types and not (config is None and is_readable):
        finding = (
            f"an Evaluator reads {kinds} only with model_type in its eval config "
            f"({', '.join(map(repr, _TFMA_FILES))}), or with a module_file that has "
            "custom_eval_shared_model"
        )
        yield Finding("warn", finding, "see that the Evaluator has one", may_be_meant=True)


@check("format_inputs", needs=("other_formats", "inputs_read"))
def format_inputs(model: ModelUnderTest) -> Iterator[Finding]:
    """Inputs that are named like features are features of the schema, of its types.

    A model in another format is fed by code of yours, by name; a name that no feature has is a
    typing mistake, or an old schema.

    Example: an ONNX model with the input `trip_mile`, where the schema has `trip_miles`.
    """
    if model.schema is None or not model.artifacts:
        yield skip(_NOTHING if not model.artifacts else "the contract has no schema")
        return
    known = {feature.name: dtype_in_schema(feature) for feature in model.schema.feature}
    for artifact, contents in model.readable_artifacts:
        infos = {n: i for s in contents.signatures.values() for n, i in s.inputs.items()}
        names = list(dict.fromkeys([*contents.feature_names, *infos]))
        strange = [name for name in names if name not in known]
        # Inputs of other names are none of the schema's: `x`, or what Transform makes.
        if len(strange) < len(names) / 2:
            for name in strange:
                yield warn(
                    f"{artifact.path}: {name!r} is no feature of the schema"
                    f"{did_you_mean(name, known)}",
                    "name inputs as the examples do, or map them where the model is called",
                )
        for name in set(infos).intersection(known):
            is_text = dtype_of(infos[name]).name == "string"
            if known[name] and is_text != (known[name] == "string"):
                yield warn(
                    f"{artifact.path}: input {name!r} is {dtype_of(infos[name]).name}, and "
                    f"{known[name]} in the schema",
                    "make both of one type",
                )
