"""Predictions of a model in another format, or of a quantised one, against those of its source."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from generic_trainer.validation._scoring import Outputs, is_float
from generic_trainer.validation._signatures import dtype_of, is_serialized, shape_of

# How far from the source a prediction may be, absolutely and relatively, by the type of weights.
_TOLERANCES = {"": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}
_QUANTISED_TOLERANCE = 5e-2
_DEFAULTS = ("serving_default", "predict")


@dataclasses.dataclass(frozen=True)
class Pair:
    """A signature of a model, and that of its source which computes the same.

    Attributes:
        name: of the signature.
        source_name: of the source's.
        inputs: input → input of the source; None where the source takes the same rows as
            serialized examples, and perhaps transforms them first.
        outputs: output → output of the source; empty where it is not known before a call.
    """

    name: str
    source_name: str
    inputs: Mapping[str, str] | None
    outputs: Mapping[str, str]


def pair_up(name: str, signature: Any, source: Mapping[str, Any]) -> Pair | None:
    """Returns the signature of a source that computes what one of another model does.

    Args:
        name: of the signature.
        signature: a `SignatureDef`, perhaps without outputs.
        source: name → `SignatureDef`.
    """
    order = [name, *_DEFAULTS, *source]
    candidates = {each: source[each] for each in order if each in source}
    for each, other in candidates.items():
        inputs = _matched(signature.inputs, other.inputs)
        outputs = _matched(signature.outputs, other.outputs)
        if inputs is not None and (outputs or not signature.outputs):
            return Pair(name, each, inputs, outputs or {})
    for each, other in candidates.items():
        outputs = _matched(signature.outputs, other.outputs)
        if is_serialized(other) and (outputs or not signature.outputs):
            return Pair(name, each, None, outputs or {})
    return None


def _matched(tensors: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, str] | None:
    """Returns name → name, by the names or where there is one of each; None if they do not fit."""
    if set(tensors) == set(others):
        pairs = {name: name for name in tensors}
    elif len(tensors) == len(others) == 1:
        pairs = dict(zip(tensors, others, strict=True))
    else:
        return None
    fits = all(_alike(tensors[name], others[other]) for name, other in pairs.items())
    return pairs if fits else None


def _alike(info: Any, other: Any) -> bool:
    dtype, other_dtype = dtype_of(info), dtype_of(other)
    shape, other_shape = shape_of(info), shape_of(other)
    if (dtype.name == "string") != (other_dtype.name == "string"):
        return False
    if shape is None or other_shape is None:
        return True
    return len(shape) == len(other_shape) and all(
        size is None or known is None or size == known
        for size, known in zip(shape[1:], other_shape[1:], strict=True)
    )


def outputs_paired(outputs: Outputs, source: Outputs) -> dict[str, str]:
    """Returns output → output of the source, by what both have returned."""
    if set(outputs) & set(source):
        return {name: name for name in outputs if name in source}
    one_each = len(outputs) == len(source) == 1
    return dict(zip(outputs, source, strict=True)) if one_each else {}


@dataclasses.dataclass(frozen=True)
class Deviation:
    """How far outputs are from those of the source.

    Attributes:
        told: the worst, in words; empty where no prediction is farther than allowed.
        share: of the values, how many are farther than allowed.
        largest: the largest difference of two numbers.
        agreement: the share of rows with the same class, None where outputs are no classes.
    """

    told: str
    share: float
    largest: float
    agreement: float | None


def tolerance(quantised: str) -> float:
    """Returns how far predictions may be from the source's, absolutely and relatively."""
    return _TOLERANCES.get(quantised, _QUANTISED_TOLERANCE)


def deviation(actual: np.ndarray, expected: np.ndarray, atol: float, rtol: float) -> Deviation:
    """Compares two arrays [rows, ...]; numbers may differ by `atol + rtol * abs(expected)`."""
    if actual.size != expected.size or actual.shape[:1] != expected.shape[:1]:
        return Deviation(f"shape {actual.shape} instead of {expected.shape}", 1.0, np.inf, None)
    actual = actual.reshape(expected.shape)
    if not (is_float(actual) and is_float(expected)):
        same = np.asarray(_plain(actual) == _plain(expected))
        share = float(same.mean()) if same.size else 1.0
        told = "" if share == 1 else f"{1 - share:.1%} of the values are others"
        return Deviation(told, 1 - share, 1 - share, share)
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    gap = np.where(np.isnan(a) & np.isnan(b), 0.0, np.abs(a - b))
    gap = np.where(a == b, 0.0, np.nan_to_num(gap, nan=np.inf))  # infinities that are the same
    excess = gap - atol - rtol * np.nan_to_num(np.abs(b), posinf=0.0)
    largest = float(gap.max(initial=0.0))
    share = float((excess > 0).mean()) if excess.size else 0.0
    told = ""
    if share:
        worst = int(np.argmax(excess))
        row = np.unravel_index(worst, b.shape)[0] if b.ndim else 0
        told = f"row {row} gives {a.flat[worst]:.6g} instead of {b.flat[worst]:.6g}"
    classes = _classes(a), _classes(b)
    agreement = None if classes[0] is None or classes[1] is None else float(
        (classes[0] == classes[1]).mean()
    )  # fmt: skip
    return Deviation(told, share, largest, agreement)


def accuracy(scores: np.ndarray, labels: np.ndarray) -> float | None:
    """Returns the share of rows whose class is the label, None where scores are of no classes.

    Args:
        scores: [rows, classes], or [rows] or [rows, 1] of the second of two classes.
        labels: [rows] numbers of the classes.
    """
    classes = _classes(scores)
    is_class = (labels == np.round(labels)).all() and (labels >= 0).all()
    if classes is None or not is_class:
        return None
    count = 2 if scores.size == len(scores) else scores.shape[-1]
    return float((classes == labels).mean()) if (labels < count).all() else None


def _classes(scores: np.ndarray) -> np.ndarray | None:
    """Returns [rows] the class with the highest score; of one score, whether it is above half."""
    if not is_float(scores) or scores.ndim == 0 or not len(scores):
        return None
    rows = scores.reshape(len(scores), -1)
    if scores.ndim > 2 or not rows.shape[1]:
        return None
    if rows.shape[1] > 1:
        return np.asarray(rows.argmax(axis=1))
    is_probability = bool(((rows >= 0) & (rows <= 1)).all())
    return (rows[:, 0] > (0.5 if is_probability else 0.0)).astype(int)


def _plain(values: np.ndarray) -> np.ndarray:
    return values.astype(str) if values.dtype.kind in "OSU" else values


def labels_of(records: Sequence[bytes], key: str) -> np.ndarray | None:
    """Returns [rows] the numbers of a feature, None where a row has none or several."""
    import tensorflow as tf

    values = []
    for record in records:
        feature = tf.train.Example.FromString(record).features.feature
        kind = feature[key].WhichOneof("kind") if key in feature else None
        numbers = [] if kind in (None, "bytes_list") else getattr(feature[key], kind).value
        if len(numbers) != 1:
            return None
        values.append(numbers[0])
    return np.array(values, np.float64) if values else None
