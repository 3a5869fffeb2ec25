"""Integers that a model makes so narrow that different ones become one, such as ids as int32.

Bits that are lost show in the outputs of rows with other integers. A cast of `x` to int32 drops the
upper half of its bits, one to float32 rounds to a multiple of a step, here 512::

    int32      f(x + 2**32) = f(x)          but f(x + 2**31) is another number
    float32    f(n + 255) = f(n)            but f(n + 257) = f(n + 512) is another number

No hash and no remainder of a division by a power of two below 2**32 has such outputs.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from generic_trainer.validation import _scoring
from generic_trainer.validation._check import Finding, warn
from generic_trainer.validation._feeds import inputs_of
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._schema_rows import parsed

_ROWS = 24
_MAX_FEATURES = 16
_LEAST_STEP = 8  # of float32, which tells rounding from the remainder of a division
_LARGEST = 1 << 62
_REMEDY = (
    "keep ids as int64, or hash them to a smaller number before a cast: "
    "tf.strings.to_hash_bucket_fast(tf.strings.as_string(id), buckets)"
)
_Change = Callable[[int], int]


def narrowed(model: ModelUnderTest, name: str, scored: _scoring.Scores) -> Iterator[Finding]:
    """Yields a finding for each integer feature of which a signature reads too few bits."""
    if not (scored.feed.real and scored.feed.serialized and scored.feed.divisible):
        return
    examples = parsed(model.eval_rows)
    features = model.signatures[name].features.items()
    ids = sorted(key for key, f in features if f.dtype == "int64" and key not in model.label_keys)
    for key in ids[:_MAX_FEATURES]:
        large = [e for e in examples if _largest(e, key) >= 1 << 26][:_ROWS]
        beyond = [e for e in large if _largest(e, key) >= 1 << 31]
        with contextlib.suppress(Exception):  # a model may refuse other integers
            if beyond and _drops_bits(model, name, scored, key, beyond):
                what = "drops the upper 32 bits of"
            elif large and _rounds(model, name, scored, key, large):
                what = "rounds to float32"
            else:
                continue
            most = max(_largest(example, key) for example in examples)
            message = (
                f"signature {name!r} {what} feature {key!r}, of which examples have values up to "
                f"{most}: different values become one"
            )
            yield warn(message, _REMEDY, may_be_meant=True)


def _largest(example: Any, key: str) -> int:
    """Returns the largest integer of a feature, 0 if it has none or one that is not to be added."""
    features = example.features.feature
    values = features[key].int64_list.value if key in features else ()
    return max(values, default=0) if all(0 <= value < _LARGEST for value in values) else 0


def _drops_bits(
    model: ModelUnderTest, name: str, scored: _scoring.Scores, key: str, rows: Sequence[Any]
) -> bool:
    changes = (lambda x: x, lambda x: x + (1 << 32), lambda x: x + (1 << 31))
    found = _outputs(model, name, scored, key, rows, changes)
    return any(
        not _differ(usual, same) and _differ(usual, other) for usual, same, other in found
    ) and not any(_differ(usual, same) for usual, same, _ in found)


def _rounds(
    model: ModelUnderTest, name: str, scored: _scoring.Scores, key: str, rows: Sequence[Any]
) -> bool:
    def near(share: float, offset: int = 0) -> _Change:
        def changed(x: int) -> int:
            step = int(np.spacing(np.float32(x)))
            # Integers that float32 has remain as they are, for lists of large and small ones.
            return int(np.float32(x)) + int(step * share) + offset if step >= _LEAST_STEP else x

        return changed

    changes = (near(0), near(0.5, -1), near(0.5, 1), near(1))
    found = _outputs(model, name, scored, key, rows, changes)
    is_rounded = not any(_differ(a, b) or _differ(c, d) for a, b, c, d in found)
    return is_rounded and any(_jump(a, d) for a, _, _, d in found)


def _outputs(
    model: ModelUnderTest,
    name: str,
    scored: _scoring.Scores,
    key: str,
    rows: Sequence[Any],
    changes: Sequence[_Change],
) -> list[list[np.ndarray]]:
    """Returns, for each output with rows, those of the examples after each change of a feature."""
    examples = []
    for change in changes:
        for row in rows:
            example = type(row).FromString(row.SerializeToString())
            values = example.features.feature[key].int64_list.value
            values[:] = [change(value) for value in values]
            examples.append(example)
    if not model.budget.allows(len(examples)):
        return []
    inputs = inputs_of(model.signatures[name], scored.feed, examples)
    if inputs is None:
        return []
    outputs = model.budget.call(model.loaded.signatures[name], inputs, len(examples))
    return [
        np.split(np.atleast_1d(output), len(changes))
        for output_name, output in outputs.items()
        if scored.has_rows(output_name) and not scored.varies(output_name)[0]
    ]


def _differ(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(_scoring.difference(a, b)[0])


def _jump(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether half of the rows differ by much, as those of neighbouring ids do; no times do."""
    if not _scoring.is_float(a):
        rows = (a != b).reshape(len(a), -1).any(axis=1)
        return bool(rows.mean() > 0.5)
    before, after = (x.astype(np.float64).reshape(len(x), -1) for x in (a, b))
    spread = np.ptp(before, axis=0)
    return bool((np.abs(after - before) > 0.1 * spread).any(axis=1).mean() > 0.5)
