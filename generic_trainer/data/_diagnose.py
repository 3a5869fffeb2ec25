"""From "parsing failed somewhere" to the file, the record and the feature."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer._core.records import READ_ERRORS, RecordFile, reason, record_dataset
from generic_trainer.data._graph import eagerly
from generic_trainer.data._parse import Parser
from generic_trainer.errors import DataError

__all__ = ["diagnose", "explain_read_errors", "watch"]

_BATCH = 1024
_KINDS = {tf.float32: "float_list", tf.int64: "int64_list", tf.string: "bytes_list"}

_Watched = list[tuple[Sequence[RecordFile], Parser]]

# What the streaming datasets of a `with` block read: their errors surface inside the user's code.
_watched: contextvars.ContextVar[_Watched | None] = contextvars.ContextVar("watched", default=None)


def watch(files: Sequence[RecordFile], parser: Parser) -> None:
    """Remembers what a dataset reads, for the `explain_read_errors` around it."""
    watched = _watched.get()
    if watched is not None:
        watched.append((files, parser))


@contextlib.contextmanager
def explain_read_errors() -> Iterator[None]:
    """Turns TensorFlow's errors about input files into a `DataError` that names file and record.

    ::

        with explain_read_errors():
            run_fn(fn_args)

    An error that the input files do not explain passes through unchanged.

    Raises:
        DataError: a file that a dataset made in the block reads is at fault.
    """
    watched: _Watched = []
    token = _watched.set(watched)
    try:
        yield
    except Exception as error:
        cause = error if isinstance(error, READ_ERRORS) else error.__cause__
        if isinstance(cause, READ_ERRORS):
            for files, parser in watched:
                found = diagnose(files, parser)
                if found is not None:
                    raise found from error
        raise
    finally:
        _watched.reset(token)


def diagnose(files: Sequence[RecordFile], parser: Parser) -> DataError | None:
    """Reads files until one shows what is wrong; returns None when all are fine."""
    return eagerly(lambda: _diagnose(files, parser))


def _diagnose(files: Sequence[RecordFile], parser: Parser) -> DataError | None:
    for file in files:
        problem = _problem_of(file, parser)
        if problem is not None:
            return DataError(problem)
    return None


def _problem_of(file: RecordFile, parser: Parser) -> str | None:
    number = 0
    dataset = record_dataset(file.path, file.compression)
    batches = iter(dataset.batch(_BATCH))
    while True:
        try:
            records = next(batches)
        except StopIteration:
            return None
        except READ_ERRORS as error:
            return _unreadable(file, dataset, number, error)
        try:
            parser.parse(records)
        except READ_ERRORS:
            return _bad_record(file, parser, number, records)
        number += len(records)


def _unreadable(
    file: RecordFile, dataset: tf.data.Dataset, number: int, error: BaseException
) -> str:
    try:
        for _ in dataset.skip(number):
            number += 1
    except READ_ERRORS as exact:
        error = exact
    kind = f"{file.compression} " if file.compression else ""
    return (
        f"{file.path}: cannot be read at record {number} (counted from 0). Expected a {kind}"
        f"TFRecord file, found: {reason(error)}. Write the file again, or take it out of the split."
    )


def _bad_record(file: RecordFile, parser: Parser, number: int, records: tf.Tensor) -> str:
    for place, record in enumerate(records):
        try:
            parser.parse(record[tf.newaxis])
        except READ_ERRORS as error:
            where = f"{file.path}, record {number + place} (counted from 0)"
            return f"{where}: {_bad_features(parser, record.numpy(), error)}"
    return f"{file.path}: a record between {number} and {number + len(records)} cannot be parsed"


def _bad_features(parser: Parser, record: bytes, error: BaseException) -> str:
    try:
        found = tf.train.Example.FromString(record).features.feature
    except Exception:
        return f"expected a serialized tf.Example, found {len(record)} bytes that are none"
    problems = [
        problem
        for key, feature in parser.features.items()
        for problem in _problems_with(key, feature, found)
    ]
    return "; ".join(problems) if problems else reason(error)


def _problems_with(key: str, feature: Any, found: Any) -> Iterator[str]:
    value_key = getattr(feature, "value_key", None) or key
    kind = found[value_key].WhichOneof("kind") if value_key in found else None
    expected = _KINDS[feature.dtype]
    dense = isinstance(feature, tf.io.FixedLenFeature)
    if kind is None:
        if dense and feature.default_value is None:
            yield (
                f"feature {value_key!r}: expected {_count(feature)} as the schema requires, found "
                "none. Fill the value upstream, or give the feature a default in the schema"
            )
        return
    number = len(getattr(found[value_key], kind).value)
    if kind != expected:
        yield (
            f"feature {value_key!r}: expected {expected} as the schema says, found {kind} with "
            f"{number} value(s). Correct the schema, or what writes the feature"
        )
    elif dense and number != _size(feature):
        yield (
            f"feature {value_key!r}: expected {_count(feature)} as the schema requires, found "
            f"{number}. Correct the shape in the schema, or what writes the feature"
        )


def _size(feature: Any) -> int:
    size = 1
    for length in feature.shape:
        size *= length
    return size


def _count(feature: Any) -> str:
    return f"{_size(feature)} value(s) of {feature.dtype.name}"
