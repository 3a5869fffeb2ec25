"""Checks of what a model reads against what comes: features of the schema, words of Transform."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from generic_trainer._core.files import sha256_of_file
from generic_trainer._core.texts import did_you_mean
from generic_trainer.validation._check import Finding, check, fail, note, skip, warn
from generic_trainer.validation._graph import upstream_of
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._schema_rows import (
    DTYPE_OF_LIST,
    dtype_in_schema,
    features_in_use,
)
from generic_trainer.validation._signatures import is_serialized, parsed_features

_PREPROCESSING = "transform_"  # TFX's names: transform_features, transform_labels
_TRANSFORM_ASSETS = "transform_fn/assets"  # inside a TransformGraph artifact


@check("schema_features", needs=("signatures_exist", "inputs_read"))
def schema_features(model: ModelUnderTest) -> Iterator[Finding]:
    """The features that the signatures read are in the schema and the examples, and so typed.

    The model reads features by name. A name that the data does not have reads as missing, quietly,
    where the feature has a default, and the model scores what is not there.

    Example: `VarLenFeature` of `"trip_mile"`, where the schema has `"trip_miles"`; `int64` where
    the examples have floats.
    """
    if not model.contract.examples_transformed:
        yield from _in_examples(model)
    if model.schema is None:
        if not model.records:
            yield skip("the contract names no schema and no examples")
        return
    known = {feature.name: dtype_in_schema(feature) for feature in features_in_use(model.schema)}
    for name, signature in model.serving_signatures.items():
        if is_serialized(signature):
            yield from _parsed(model, name, signature, known)
        else:
            yield from _inputs(model, name, signature, known)


def _in_examples(model: ModelUnderTest) -> Iterator[Finding]:
    """Yields what signatures parse otherwise than the contract's examples have it."""
    import tensorflow as tf

    rows = [tf.train.Example.FromString(record).features.feature for record in model.records]
    if not rows or _parses_inside(model):
        return
    for name, signature in model.serving_signatures.items():
        if not is_serialized(signature):
            continue
        read = parsed_features(model.meta_graph.graph_def, signature)
        if read and not any(key in row for key in read for row in rows):
            yield warn(
                f"signature {name!r} reads {', '.join(sorted(read))}, of which none of the "
                f"{len(rows)} first examples has any",
                "give the contract raw examples, as the model will get them; of transformed ones "
                "say so (examples_transformed)",
            )
        for key, parsed in sorted(read.items()):
            kinds = [row[key].WhichOneof("kind") if key in row else None for row in rows]
            others = {DTYPE_OF_LIST[kind] for kind in kinds if kind} - {parsed.dtype}
            if others:
                yield fail(
                    f"signature {name!r} parses feature {key!r} as {parsed.dtype}, the examples "
                    f"have {', '.join(sorted(others))}: a batch with such a row raises an error",
                    "parse what the examples hold, and cast in the signature",
                )
            elif parsed.is_required and not any(kinds) and key not in model.label_keys:
                yield fail(
                    f"signature {name!r} needs feature {key!r}, and none of the {len(rows)} first "
                    "examples has it",
                    "name it as the examples do, or give the FixedLenFeature a default_value",
                )


def _parses_inside(model: ModelUnderTest) -> bool:
    """Whether something is parsed that is itself a feature of an example."""
    parsing = [node for node in model.nodes if node.op.startswith("ParseExample")]
    places = {(node.function, node.proto.name) for node in parsing}
    graph_def = model.meta_graph.graph_def
    return len(parsing) > 1 and any(places & upstream_of([node], graph_def) for node in parsing)


def _parsed(
    model: ModelUnderTest, name: str, signature: Any, known: Mapping[str, str]
) -> Iterator[Finding]:
    seen = _features_of_examples(model)
    parsed = parsed_features(model.meta_graph.graph_def, signature)
    for key in sorted(parsed.keys() - known.keys() - seen):
        yield warn(
            f"signature {name!r} reads a feature {key!r}, which the schema does not have"
            f"{did_you_mean(key, known.keys() - parsed.keys())}: no request fills it, so that a "
            "default silently takes its place, or parsing fails",
            "name it as the schema does, or add it to the schema",
        )
    sizes = {each.name: _values_of(each) for each in features_in_use(model.schema)}
    for key in sorted(parsed.keys() & known.keys() - seen):
        if sizes[key] not in (None, parsed[key].dense_size) and parsed[key].dense_size:
            yield fail(
                f"signature {name!r} parses feature {key!r} as {parsed[key].dense_size} values, in "
                f"the schema it has {sizes[key]}: every row that has it raises an error",
                "parse the schema's shape",
            )
        if known[key] not in ("", parsed[key].dtype):
            yield fail(
                f"signature {name!r} parses feature {key!r} as {parsed[key].dtype}, in the schema "
                f"it is {known[key]}: every row that has it raises an error",
                "parse the schema's dtype, and cast in the signature",
            )
    if parsed:
        unread = ", ".join(sorted(known.keys() - parsed.keys())) or "none"
        yield note(f"features of the schema that signature {name!r} does not read: {unread}")


def _values_of(feature: Any) -> int | None:
    """Returns how many values each row has by a schema's shape; None where it has no such."""
    sizes = [dim.size for dim in feature.shape.dim]
    return math.prod(sizes) if feature.HasField("shape") and all(sizes) else None


def _inputs(
    model: ModelUnderTest, name: str, signature: Any, known: Mapping[str, str]
) -> Iterator[Finding]:
    features = {
        key: key if key in known else key.removesuffix("_input") for key in signature.inputs
    }
    if known.keys().isdisjoint(features.values()):
        # They are something else, such as all features in one tensor, which a server may be fed.
        if model.contract.matches_rows and model.eval_config is None:
            yield warn(
                f"signature {name!r} takes {sorted(features)}, none of which is a feature of the "
                "schema: an Evaluator feeds inputs by the features' names",
                "name the inputs as the schema names the features, or take serialized examples",
            )
        return
    unread = known.keys() - features.values()
    for key, feature in sorted(features.items()):
        if feature not in known and (nearest := did_you_mean(feature, unread)):
            yield warn(
                f"signature {name!r} takes an input {key!r}, which is no feature of the schema"
                f"{nearest}; its other inputs are",
                "name the inputs as the schema names the features: the Evaluator feeds them by "
                "name",
            )


def _features_of_examples(model: ModelUnderTest) -> set[str]:
    import tensorflow as tf

    examples = map(tf.train.Example.FromString, model.records)
    return {name for example in examples for name in example.features.feature}


@check("label_inputs", needs=("signatures_exist", "inputs_read"))
def label_inputs(model: ModelUnderTest) -> Iterator[Finding]:
    """No signature that consumers call takes the label as an input.

    The label is what the model is to tell, and is unknown when it serves. A signature that wants it
    cannot be called then.

    Example: `serving_default(x, species)` with `label_keys=("species",)`.
    """
    for name, signature in model.serving_signatures.items():
        if name.startswith(_PREPROCESSING):
            continue
        for label in sorted(model.label_keys.intersection(signature.inputs)):
            judge = fail if label in model.contract.label_keys else warn
            yield judge(
                f"signature {name!r} takes the label {label!r} as an input",
                "leave the label out of the signature: it is not known when the model serves",
            )


@check("vocabularies", needs=("assets", "inputs_read"))
def vocabularies(model: ModelUnderTest) -> Iterator[Finding]:
    """Assets that the transform graph has as well hold the same.

    Transform wrote the vocabulary, and the numbers of its words are what the model was trained on.
    Another file of that name shifts them all, and the model scores the wrong words.

    Example: the Transform step was run again, and the export still has the vocabulary of the run
    before.
    """
    graph = model.transform_graph
    if graph is None:
        yield skip("the contract names no transform graph")
        return
    for name in sorted({asset.filename for asset in model.assets}):
        ours = model.directory / "assets" / name
        theirs = graph / _TRANSFORM_ASSETS / name
        if not (ours.is_file() and theirs.is_file()):
            continue
        if sha256_of_file(ours) == sha256_of_file(theirs):
            yield note(f"assets/{name} is the transform graph's")
        else:
            yield Finding(
                "fail",
                f"assets/{name} has {_size(ours)}, and others than the transform graph's, which "
                f"has {_size(theirs)}: the model looks words up in another table than it was "
                "trained with",
                "export with the transform graph of this run (fn_args.transform_graph_path), and "
                "look for files that an earlier run left",
                may_be_meant=True,
            )


def _size(file: Path) -> str:
    content = file.read_bytes()
    return f"{len(content.splitlines())} lines ({len(content)} bytes)"
