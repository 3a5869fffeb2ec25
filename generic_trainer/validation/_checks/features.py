"""Checks of the features and vocabularies that a model reads, against schema and Transform."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generic_trainer._core.files import sha256_of_file
from generic_trainer._core.texts import did_you_mean
from generic_trainer.validation._check import Findings, Skip, check, fail, note, warn
from generic_trainer.validation._model import PREPROCESSING, ModelUnderTest
from generic_trainer.validation._schema_rows import dtypes_in_schema, features_in_use, parsed
from generic_trainer.validation._signatures import Signature, feature_of

_TRANSFORM_ASSETS = "transform_fn/assets"  # inside a TransformGraph artifact
_NAMES_REMEDY = "name inputs as the schema names features: the Evaluator feeds them by name"


@check(after="composite_tensors", needs="signatures_exist inputs_read", decided_by="code")
def schema_features(model: ModelUnderTest) -> Findings:
    """The features that the signatures read are in the schema and the examples, of the same types.

    The model reads features by name. If the feature has a default, a wrong name silently reads as
    missing, and the model scores the default.

    Example: `VarLenFeature` of `"trip_mile"`, but `"trip_miles"` in the schema; `int64`, but floats
    in the examples.
    """
    yield from _in_examples(model)
    if model.evidence.schema is None:
        if not model.evidence.records:
            raise Skip("the contract names no schema and no examples")
        return
    known = dtypes_in_schema(features_in_use(model.evidence.schema))
    for name, signature in model.serving_signatures.items():
        if not model.takes_transformed(signature):
            findings = _parsed if signature.is_serialized else _inputs
            yield from findings(model, name, signature, known)


def _in_examples(model: ModelUnderTest) -> Findings:
    """Yields features of signatures that the contract's examples lack, or have of another type."""
    rows = len(model.evidence.raw_records)
    seen = model.evidence.seen_dtypes
    if not rows or _parses_inside(model):
        return
    examples = parsed(model.evidence.eval_rows) if model.evidence.schema is None else []
    present = set(seen).union(*(example.features.feature for example in examples))
    for name, signature in model.serving_signatures.items():
        if not signature.is_serialized or model.takes_transformed(signature):
            continue
        read = signature.features
        if read and seen.keys().isdisjoint(read):
            yield warn(
                f"signature {name!r} reads {', '.join(sorted(read))}"
                f", of which none of the {rows} first examples has any",
                "give the contract raw examples, or set examples_transformed",
            )
        for key, feature in sorted(read.items()):
            dtypes = seen.get(key, set())
            if others := ", ".join(sorted(dtypes - {feature.dtype})):
                yield fail(
                    f"signature {name!r} parses feature {key!r} as {feature.dtype}, "
                    f"the examples have {others}: a batch with such a row raises an error",
                    "parse the dtype of the examples, and cast in the signature",
                )
            elif feature.is_required and not dtypes and key not in model.evidence.label_keys:
                yield fail(
                    f"signature {name!r} needs feature {key!r}, which none of the {rows} first "
                    "examples has",
                    "name it as the examples do, or give the FixedLenFeature a default_value",
                )
            elif (
                examples
                and key not in present | model.evidence.label_keys
                and (near := did_you_mean(key, present - read.keys()))
            ):
                yield warn(
                    f"signature {name!r} reads feature {key!r}, which none of the "
                    f"{len(examples)} examples has{near}: it silently reads as missing",
                    "name it as the examples do",
                )


def _parses_inside(model: ModelUnderTest) -> bool:
    """Whether a parsed record is itself a feature of an example."""
    parsing = {node.place for node in model.nodes if node.op.startswith("ParseExample")}
    return any(parsing & model.graph.upstream_of([place]) for place in parsing)


def _parsed(
    model: ModelUnderTest, name: str, signature: Signature, known: Mapping[str, str]
) -> Findings:
    seen = model.evidence.seen_dtypes.keys()
    read = signature.features
    for key in sorted(read.keys() - known.keys() - seen):
        near = did_you_mean(key, known.keys() - read.keys())
        yield warn(
            f"signature {name!r} reads feature {key!r}, which the schema does not have{near}"
            ": its default silently takes the place of values, or parsing fails",
            "name it as the schema does, or add it to the schema",
        )
    sizes = {
        feature.name: _values_of(feature) for feature in features_in_use(model.evidence.schema)
    }
    for key in sorted(read.keys() & known.keys() - seen):
        subject = f"signature {name!r} parses feature {key!r} as"
        feature = read[key]
        if sizes[key] not in (None, feature.dense_size) and feature.dense_size:
            yield fail(
                f"{subject} {feature.dense_size} values, in the schema it has {sizes[key]}",
                "parse the schema's shape: every row that has the feature raises an error",
            )
        if known[key] not in ("", feature.dtype):
            yield fail(
                f"{subject} {feature.dtype}, in the schema it is {known[key]}",
                "parse the schema's dtype, and cast in the signature: every row that has the "
                "feature raises an error",
            )


def _values_of(feature: Any) -> int | None:
    """Returns the number of values of each row by a schema's shape; None without a shape."""
    sizes = [dim.size for dim in feature.shape.dim]
    return math.prod(sizes) if feature.HasField("shape") and all(sizes) else None


def _inputs(
    model: ModelUnderTest, name: str, signature: Signature, known: Mapping[str, str]
) -> Findings:
    features = {key: feature_of(key, known) for key in signature.inputs}
    if known.keys().isdisjoint(features.values()):
        # They may be all features in one tensor, which is fine for a server.
        if model.contract.matches_rows and model.evidence.eval_config is None:
            yield warn(
                f"signature {name!r} takes {sorted(features)}, none a feature of the schema",
                _NAMES_REMEDY,
            )
        return
    unread = known.keys() - features.values()
    for key, feature in sorted(features.items()):
        if feature not in known and (nearest := did_you_mean(feature, unread)):
            yield warn(
                f"signature {name!r}: input {key!r} is not a feature of the schema{nearest}",
                _NAMES_REMEDY,
            )


@check(needs="signatures_exist inputs_read", decided_by="code")
def label_inputs(model: ModelUnderTest) -> Findings:
    """No signature that consumers call takes the label as an input.

    The model predicts the label, which is unknown when it serves: a signature that needs the label
    cannot be called then.

    Example: `serving_default(x, species)` with `label_keys=("species",)`.
    """
    if not model.evidence.label_keys:
        raise Skip("nothing to test: the contract and its eval config name no label")
    for name, signature in model.serving_signatures.items():
        if name.startswith(PREPROCESSING):
            continue
        for label in sorted(model.evidence.label_keys.intersection(signature.inputs)):
            judge = fail if label in model.contract.label_keys else warn
            yield judge(
                f"signature {name!r} takes the label {label!r} as an input",
                "leave it out of the signature: it is not known when the model serves",
            )


@check(after="assets", needs="assets inputs_read", decided_by="code")
def vocabularies(model: ModelUnderTest) -> Findings:
    """Assets with the name of an asset of the transform graph are the same file.

    Transform wrote the vocabulary, and the model was trained on the indices of its words. Another
    file of that name shifts the indices, and the model scores the wrong words.

    Example: the Transform step was run again, and the export still has the previous
    vocabulary.
    """
    graph = model.evidence.transform_graph
    if graph is None:
        raise Skip("the contract names no transform graph")
    files = model.asset_files
    pairs: dict[str, tuple[Path, Path]] = {}
    for name, ours in files.items():
        theirs = graph / _TRANSFORM_ASSETS / name
        if ours.is_file() and theirs.is_file():
            pairs[name] = (ours, theirs)
    if not pairs:
        raise Skip("nothing to test: no asset has the name of an asset of the transform graph")
    for name, (ours, theirs) in pairs.items():
        # TensorFlow numbers further files of a name, such as one that the model has of its own.
        numbered = [f for n, f in files.items() if re.fullmatch(rf"{re.escape(name)}_\d+", n)]
        alike = [ours, *filter(Path.is_file, numbered)]
        if sha256_of_file(theirs) in map(sha256_of_file, alike):
            yield note(f"the transform graph's {name} is among the assets")
        else:
            yield fail(
                f"assets/{name} has {_size(ours)}, the transform graph's has {_size(theirs)}"
                ": the model looks words up in another table than the examples' indices have",
                "export with the transform graph of this run (fn_args.transform_graph_path), "
                "into a directory without files of an earlier run",
                may_be_meant=True,
            )


def _size(file: Path) -> str:
    content = file.read_bytes()
    return f"{len(content.splitlines())} lines ({len(content)} bytes)"
