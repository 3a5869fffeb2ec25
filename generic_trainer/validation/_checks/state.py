"""State that a model keeps between calls, which grows until the memory of a server is used up."""

import contextlib
import re
from typing import Any

import numpy as np

from generic_trainer.validation._check import Finding, Findings, Skip, check, warn
from generic_trainer.validation._feeds import inputs_of
from generic_trainer.validation._graph import QUEUES
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._schema_rows import parsed
from generic_trainer.validation._scoring import Feed, Scores, call

_INSERTS = re.compile(r"LookupTableInsert(V2)?")
_FAR = 1_000_000  # from a known integer; as a length of one row it still fits into memory
_REMEDY = "a server's memory grows until it is killed: serve without state, or bound it"


@check(after="unforeseen_rows", needs="scores")
def state_growth(model: ModelUnderTest) -> Findings:
    """No table, queue or variable grows with the calls of a signature.

    A signature may change state. State that grows with each call fills the server's memory in
    weeks, which no test shows.

    Example: a `MutableHashTable` to which every unseen word is added.
    """
    changing = 0
    for name, scored in model.scored(served=True).items():
        signature = model.signatures[name]
        ops = signature.ops
        for fills, takes in QUEUES.items():
            filling = sorted(op for op in ops if re.fullmatch(fills, op))
            if filling and not any(re.fullmatch(takes, op) for op in ops):
                changing += 1
                yield _finding(name, f"{filling[0]} keeps values that it never takes out again")
        if signature.assigns or any(map(_INSERTS.fullmatch, ops)):
            changing += 1
            yield from _measured(model, name, scored)
    if not changing:
        raise Skip("no signature that consumers call keeps state")


def _measured(model: ModelUnderTest, name: str, scored: Scores) -> Findings:
    """Compares the state before and after calls, with known rows and new ones."""
    signature = model.loaded.signatures[name]
    call(signature, scored.feed.inputs)
    before = _sizes(signature)
    call(signature, scored.feed.inputs)
    again = _sizes(signature)
    for shift in (0, _FAR):
        with contextlib.suppress(Exception):  # the model may refuse unknown rows
            if (unseen := _unseen(model, name, scored.feed, shift)) is not None:
                call(signature, unseen)
    after = _sizes(signature)
    for what in before:
        if again[what] > before[what]:
            grows = f"{what} grows with every call, from {before[what]} to {again[what]} values"
            yield _finding(name, grows)
        elif after[what] > again[what]:
            grows = f"{what} grows with new values, from {again[what]} to {after[what]} entries"
            yield _finding(name, grows)


def _finding(name: str, problem: str) -> Finding:
    return warn(f"signature {name!r}: {problem}", _REMEDY, may_be_meant=True)


def _sizes(signature: Any) -> dict[str, int]:
    """Returns the size of each table and variable of a signature."""
    import tensorflow as tf

    sizes = {}
    for number, handle in enumerate(signature.captured_inputs):
        if handle.dtype != tf.resource:
            continue
        with contextlib.suppress(tf.errors.OpError):
            shape = tf.raw_ops.VariableShape(input=handle).numpy()
            sizes[f"variable {number}"] = int(np.prod(shape, dtype=np.int64))
            continue
        with contextlib.suppress(tf.errors.OpError):
            size = tf.raw_ops.LookupTableSizeV2(table_handle=handle).numpy()
            sizes[f"table {number}"] = int(size)
    return sizes


def _unseen(model: ModelUnderTest, name: str, feed: Feed, shift: int) -> Any:
    """Returns inputs with texts that are new to the signature, None if impossible.

    Integers are those that are known, of plain inputs the next ones: they may be indices, of which
    the model refuses others. With a `shift` they are far from those, in one row alone: they may be
    lengths, and all rows together fill the memory.
    """
    if shift:
        feed = feed.part([0]) if feed.divisible else feed
        shift //= max(feed.rows, 1)
    if not feed.records:
        return {key: _other(value, shift) for key, value in feed.inputs.items()}
    examples = parsed(feed.records)
    for example in examples:
        for feature in example.features.feature.values():
            # To set the texts of a number would leave it without its values.
            if feature.HasField("bytes_list"):
                texts = feature.bytes_list.value
                texts[:] = [b"unseen " + text for text in texts]
            if feature.HasField("int64_list"):
                numbers = feature.int64_list.value
                numbers[:] = [number + shift for number in numbers]
    return inputs_of(model.signatures[name], feed, examples)


def _other(values: np.ndarray, shift: int) -> np.ndarray:
    if values.dtype.kind == "O":
        return np.array([b"unseen " + text for text in values.flat], object).reshape(values.shape)
    return values + (shift or 1) if values.dtype.kind in "iu" else values
