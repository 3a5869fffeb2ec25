"""Comparison of the model with others: the source it was made from, and the base model.

TFLite models and quantised SavedModels have a source; the base model is the one that serves now.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from generic_trainer._core.texts import reason_of
from generic_trainer.validation._check import (
    FORMATS,
    Finding,
    Findings,
    Skip,
    check,
    fail,
    note,
    warn,
)
from generic_trainer.validation._checks.graph import why_not_run
from generic_trainer.validation._feeds import feed_for
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._scoring import Feed, Outputs, deviation, difference, is_float
from generic_trainer.validation._signatures import Tensor, described, fits
from generic_trainer.validation._tflite import Run

# Allowed difference from the source, absolute and relative, by the type of the weights.
_TOLERANCES = {"": 1e-3, "bfloat16": 5e-2, "float16": 1e-2}
_QUANTISED_TOLERANCE = 5e-2
_FEW = 0.05  # share of a quantised model's values that may differ by more
_MOST = 0.5  # share of classes that a new model, or of values that half precision, seldom changes
_ROWS = 100  # that are compared
_PARITY_REMEDY = (
    "convert it again from the SavedModel that is published, with the same preprocessing, or set "
    "the tolerance: ServingContract(parity_atol=..., parity_rtol=...)"
)
_UNCOMPARED_REMEDY = (
    "keep names and shapes when you convert; without parity_atol and parity_rtol in the contract "
    "nothing has to be compared"
)
_BASE_REMEDY = "keep the old names beside the new ones, or change the clients first"


class _Subject(NamedTuple):
    """A model that is compared with its source."""

    name: str
    signatures: Mapping[str, Any]
    precision: str
    run: Run


class _Pair(NamedTuple):
    """A signature of a model, and the signature of its source that computes the same.

    Attributes:
        name: of the signature.
        source_name: of the source's.
        inputs: input → input of the source; None if the source takes the same rows as serialized
            examples, and perhaps transforms them first.
    """

    name: str
    source_name: str
    inputs: Mapping[str, str] | None


@check(after="format_scores", needs="format_scores", formats=FORMATS)
def parity(model: ModelUnderTest) -> Findings:
    """TFLite models and quantised SavedModels predict what their source predicts.

    Converting and quantising change the numbers, mostly by little; only a comparison with the
    source shows by how much.

    Example: a model that was quantised without a representative dataset, which is off by 0.3.
    `parity_atol` and `parity_rtol` set the tolerance.
    """
    subjects = list(_subjects(model))
    if not subjects or model.source is None:
        message = "no model that can be run and no SavedModel beside it, or as source_model"
        if not model.contract.compares:
            raise Skip(message)
        yield _not_compared(model, message)
        return
    if model.source is not model and why_not_run(model.source):
        yield fail(
            "the source model reaches files or the network: not run",
            "allow its ops with ServingContract(allowed_ops=...)",
        )
        return
    try:
        signatures = model.source.signatures
        model.source.loaded  # noqa: B018 - loads on first use
    except Exception as error:
        yield fail(
            f"the source model cannot be loaded: {reason_of(error)}",
            "point source_model at the directory that holds its saved_model.pb",
        )
        return
    for subject in subjects:
        pairs = [_pair_up(name, s, signatures) for name, s in subject.signatures.items()]
        for pair in filter(None, pairs):
            try:
                yield from _compared(model, subject, pair, model.source.call)
            except Exception as error:
                yield _not_compared(model, f"{subject.name}: {reason_of(error)}")
        if not any(pairs):
            message = f"{subject.name}: no signature of the source takes and returns the same"
            yield _not_compared(model, message)


def _not_compared(model: ModelUnderTest, message: str) -> Finding:
    """Fails if the contract bounds the difference; a file beside a SavedModel may be any model."""
    contract = model.contract
    message = f"not compared: {message}"
    if contract.compares:
        return fail(message, _UNCOMPARED_REMEDY)
    is_asked = contract.source_model is not None
    return Finding("warn" if is_asked else "pass", message, _UNCOMPARED_REMEDY if is_asked else "")


def _subjects(model: ModelUnderTest) -> Iterator[_Subject]:
    if model.contract.source_model is not None and model.scores:
        named = {name: model.signatures[name] for name in model.served_scores}
        yield _Subject("the SavedModel", named, _precision(model), model.call)
    for lite in model.tflite_models:
        if lite.may_run:
            yield _Subject(str(lite.path), lite.signatures, lite.precision, lite.run)


def _precision(model: ModelUnderTest) -> str:
    """Returns the type of a SavedModel's smallest weights, "" for none below float32."""
    import tensorflow as tf

    nodes = [node for node in model.nodes if node.served]
    if any(node.op.startswith(("Quantize", "FakeQuant", "UniformQuantize")) for node in nodes):
        return "int8"
    # A constant of one number is no weight: the code of an image, a limit.
    weights = [node for node in nodes if node.op == "VarHandleOp" or node.size > 1]
    kinds = {tf.as_dtype(node.proto.attr["dtype"].type).name for node in weights}
    return next((kind for kind in ("int8", "uint8", *_TOLERANCES) if kind in kinds), "")


def _pair_up(name: str, signature: Any, source: Mapping[str, Any]) -> _Pair | None:
    """Returns the signature of a source, given as name → `SignatureDef`, that computes the same."""
    order = dict.fromkeys([name, "serving_default", "predict", *source])
    pairs = [
        _Pair(name, other, _matched(signature.inputs, source[other].inputs))
        for other in order
        if other in source and _matched(signature.outputs, source[other].outputs)
    ]
    with_inputs = [pair for pair in pairs if pair.inputs is not None]
    serialized = [pair for pair in pairs if source[pair.source_name].is_serialized]
    return next(iter([*with_inputs, *serialized]), None)


def _matched(tensors: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, str] | None:
    """Returns name → name, by name or as the only ones; None if they do not fit."""
    pairs = _names_paired(tensors, others)
    if len(pairs) != len(tensors) or len(pairs) != len(others):
        return None
    return pairs if all(_alike(tensors[n], others[o]) for n, o in pairs.items()) else None


def _names_paired(names: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, str]:
    """Returns name → the same name among others, or the only names of both."""
    if len(names) == len(others) == 1:
        return dict(zip(names, others, strict=True))
    return {name: name for name in names if name in others}


def _alike(tensor: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors can be the same: text or numbers, of shapes that agree."""
    if (tensor.dtype.name == "string") != (other.dtype.name == "string"):
        return False
    # Numbers of rows may differ.
    free = [None, *tensor.shape[1:]] if tensor.shape and other.shape else tensor.shape
    return fits(free, other.shape)


def _compared(model: ModelUnderTest, subject: _Subject, pair: _Pair, source: Run) -> Findings:
    contract = model.contract
    feed = feed_for(model, subject.signatures[pair.name], model.evidence.eval_rows)
    if feed is None or (pair.inputs is None and not (feed.real and feed.records)):
        yield _not_compared(model, f"{subject.name}: no rows that it and the source take")
        return
    part = feed.part(range(feed.rows)[:_ROWS]) if feed.divisible else feed
    rows = part.rows
    outputs, expected, random = _both(model, pair, part, subject.run, source)
    allowed = _TOLERANCES.get(subject.precision, _QUANTISED_TOLERANCE)
    atol = allowed if contract.parity_atol is None else contract.parity_atol
    rtol = allowed if contract.parity_rtol is None else contract.parity_rtol
    # A source that transforms its rows first may get other rows, under the same names.
    is_same = pair.inputs is not None
    is_half = subject.precision in _TOLERANCES
    measured: dict[str, Any] = {"rows": rows, "source": pair.source_name, "outputs": {}}
    model.facts.setdefault("parity", {})[subject.name] = measured
    for name, other in _names_paired(outputs, expected).items():
        actual = outputs[name]
        wanted = expected[other]
        if actual.size == wanted.size and actual.shape[:1] == wanted.shape[:1]:
            actual = actual.reshape(wanted.shape)
        worst, share, largest = deviation(actual, wanted, atol, rtol)
        measured["outputs"][name] = {"largest": float(f"{largest:.4g}")}
        message = (
            f"{subject.name}, output {name!r}, {rows} rows of {feed.source}: differs from the "
            f"source by {largest:.3g} at most"
        )
        is_noise = bool(subject.precision) and not contract.compares and share <= _FEW
        if other in random:
            yield note(f"{subject.name}, output {name!r}: the source itself varies")
        elif worst and not is_noise:
            is_broken = not subject.precision or (is_half and share > _MOST)
            is_certain = contract.compares or (is_same and is_broken)
            message += f"; {worst}, {share:.0%} are beyond {atol:g} + {rtol:g} of it"
            is_meant = not contract.compares
            yield Finding("fail" if is_certain else "warn", message, _PARITY_REMEDY, is_meant)
        else:
            yield note(message)
    if not measured["outputs"]:
        message = f"{subject.name}: its outputs have other names than the source's"
        yield _not_compared(model, message)


def _both(
    model: ModelUnderTest, pair: _Pair, part: Feed, run: Run, source: Run
) -> tuple[Outputs, Outputs, set[str]]:
    """Calls model and source; returns the outputs of both, and those of the source that vary."""
    given: dict[str, Any]
    if pair.inputs is not None:
        given = {pair.inputs[name]: value for name, value in part.inputs.items()}
    else:
        (key,) = (model.source or model).signatures[pair.source_name].inputs
        given = {key: np.array(part.records, dtype=object)}
    expected, again = (source(pair.source_name, given) for _ in range(2))
    random = {key for key in expected if difference(again[key], expected[key])[0]}
    return run(pair.name, part.inputs), expected, random


@check(after="session", needs="loads devices", is_advisory=True)
def base_model(model: ModelUnderTest) -> Findings:
    """Signatures, ops and assets are those of the base model, and predictions are alike.

    If a new model behaves differently, the changes since the model that serves now are the first
    clue. The check compares and warns; a base model that is damaged, crashes or would reach files
    is a warning too, and is not run in the last case.

    Example: an input that the base model has and this one does not; predictions that are all
    shifted.
    """
    base = model.base
    if base is None:
        raise Skip("the contract names no base model")
    try:
        base.signatures  # noqa: B018 - parses on first use
    except Exception as error:
        yield warn(
            f"the base model {model.contract.base_model} cannot be read: {reason_of(error)}",
            "point base_model at the directory that holds its saved_model.pb",
        )
        return
    for change in _changes(base, model):
        yield warn(change, _BASE_REMEDY)
    if reason := why_not_run(base):
        yield warn(
            f"the base model is not run, because it would reach files or the network: {reason}",
            "accept its ops with ServingContract(allowed_ops=...)",
        )
        return
    compared = list(_changed_predictions(base, model))
    yield from compared
    if not compared:
        yield note("no row was scored by which to compare the predictions")


def _changes(base: ModelUnderTest, model: ModelUnderTest) -> Iterator[str]:
    for name, old in base.signatures.items():
        new = model.signatures.get(name)
        if new is None:
            yield f"signature {name!r} of the base model is gone"
            continue
        for kind in ("inputs", "outputs"):
            before, after = (described(getattr(signature, kind)) for signature in (old, new))
            if before != after:
                yield f"signature {name!r}: {kind} were {before}, are {after}"
    old_ops, new_ops = ({node.op for node in each.nodes if node.served} for each in (base, model))
    if new_ops - old_ops:
        yield f"ops that the base model did not use: {', '.join(sorted(new_ops - old_ops))}"
    old_assets, new_assets = list(base.asset_files), list(model.asset_files)
    if old_assets != new_assets:
        yield f"assets were {old_assets}, are {new_assets}"


def _changed_predictions(base: ModelUnderTest, model: ModelUnderTest) -> Findings:
    for name, scores in model.scores.items():
        if name not in base.signatures or name not in model.serving_signatures:
            continue
        try:
            outputs = base.call(name, scores.feed.inputs)
        except Exception as error:
            yield warn(
                f"the base model's signature {name!r} does not score {scores.feed.source}: "
                f"{reason_of(error)}",
                "compare the two on other examples",
            )
            continue
        for key in sorted(set(outputs) & set(scores.batch)):
            subject = f"signature {name!r}, output {key!r}"
            yield _compare_outputs(subject, scores.batch[key], outputs[key])
    base.release()


def _compare_outputs(subject: str, new: np.ndarray, old: np.ndarray) -> Finding:
    if new.shape != old.shape:
        return note(f"{subject}: shapes {new.shape} and {old.shape}, not compared")
    if not is_float(new):
        share = float(np.mean(new != old))
        message = f"{subject}: {share:.0%} of the values differ"
        # Of values that are all different, such as texts or amounts, most may change.
        are_classes = 1 < len(np.unique(old)) <= old.size / 2
        remedy = "see whether the new model numbers or names its classes as the base model does"
        return warn(message, remedy) if share > _MOST and are_classes else note(message)
    gap = float(np.mean(np.abs(new.astype(np.float64) - old.astype(np.float64))))
    size = float(np.mean(np.abs(old.astype(np.float64))))
    message = f"{subject}: differs by {gap:.3g} on average; the base model's average is {size:.3g}"
    remedy = "see whether the new model has learnt the same target in the same unit"
    return warn(message, remedy) if gap > size else note(message)
