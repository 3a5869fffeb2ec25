"""Diagnosis of read errors: the file, the record and the feature that one comes from."""

import contextlib
import contextvars
import logging
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from generic_trainer._core.records import READ_ERRORS, RecordFile, record_dataset
from generic_trainer._core.texts import reason_of
from generic_trainer.data._graph import eagerly
from generic_trainer.data._parser import Parser
from generic_trainer.data._sources import misfit
from generic_trainer.errors import DataError

# Outside of a graph, TensorFlow raises a ValueError where the columns of a sparse tensor differ.
PARSE_ERRORS = (*READ_ERRORS, ValueError)
# Never of the records.
_OF_MODELS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.OutOfRangeError,
    tf.errors.ResourceExhaustedError,
)
_BATCH = 1024
_KINDS = {tf.float32: "float_list", tf.int64: "int64_list", tf.string: "bytes_list"}

_logger = logging.getLogger(__name__)

_Watched = list[tuple[Sequence[RecordFile], Parser]]

# The files of streaming datasets in a `with` block, whose errors surface inside the user's code.
_watched: contextvars.ContextVar[_Watched | None] = contextvars.ContextVar("watched", default=None)


def watch(files: Sequence[RecordFile], parser: Parser) -> None:
    """Registers the files of a dataset with the `explain_read_errors` around it."""
    watched = _watched.get()
    if watched is not None:
        watched.append((files, parser))


class explain_read_errors(contextlib.ContextDecorator):
    """Turns TensorFlow's errors about input files into a `DataError` that names file and record.

    ::

        with explain_read_errors():
            run_fn(fn_args)

    An error that the input files do not explain passes through unchanged.

    Raises:
        DataError: a file that a dataset made in the block reads is at fault.
    """

    # A class, because the frame of a generator and the error that is thrown into it would hold each
    # other, and the iterator with them, until garbage is collected. To destroy an iterator that has
    # been idle for long, TensorFlow takes up to minutes.
    def __init__(self) -> None:
        self._entered: list[tuple[_Watched, contextvars.Token[_Watched | None]]] = []

    def __enter__(self) -> None:
        watched: _Watched = []
        self._entered.append((watched, _watched.set(watched)))

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        watched, token = self._entered.pop()
        _watched.reset(token)
        explained = _explained(error, watched)
        if explained is None:
            return
        try:
            raise explained from error
        finally:
            del explained  # whose traceback holds this frame


def _explained(error: BaseException | None, watched: _Watched) -> DataError | None:
    if not isinstance(error, Exception):
        return None
    cause = error if isinstance(error, READ_ERRORS) else error.__cause__
    if not isinstance(cause, READ_ERRORS) or isinstance(cause, _OF_MODELS) or not watched:
        return None
    # It may take long, and the error may be one of the model.
    reading = "Reading the examples again, to see whether a record is the cause of: %s"
    _logger.warning(reading, reason_of(cause))
    return next(filter(None, (diagnose(files, parser) for files, parser in watched)), None)


def diagnose(files: Sequence[RecordFile], parser: Parser) -> DataError | None:
    """Reads files up to the first error, and returns it; None if there is no error."""

    errors = (_error_of(file, parser) for file in files)
    return eagerly(lambda: next(filter(None, errors), None))


def _error_of(file: RecordFile, parser: Parser) -> DataError | None:
    number = 0
    dataset = record_dataset(file.path, file.compression)
    try:
        for records in dataset.batch(parser.rows_at_once(_BATCH)):
            parser.parse_fitting(records)
            number += len(records)
        return None
    except PARSE_ERRORS as error:
        problems = _unreadable(file, error)
    try:  # the records of that batch, one by one
        for record in dataset.skip(number):
            try:
                parser.parse_fitting(record[tf.newaxis])
            except PARSE_ERRORS as error:
                problems = _problems_of(parser, record.numpy(), error)
                break
            number += 1
    except READ_ERRORS as error:
        problems = _unreadable(file, error)
    return DataError(
        f"{file.path}, record {number} (counted from 0): {'; '.join(problems.values())}",
        path=file.path,
        record=number,
        feature=next(iter(problems)),
        problems=tuple(problems.values()),
    )


def _unreadable(file: RecordFile, error: BaseException) -> dict[str | None, str]:
    kind = f"{file.compression} " if file.compression else ""
    return {
        None: f"cannot be read. Expected a {kind}TFRecord file, found: {reason_of(error)}. "
        "Write the file again, or take it out of the split"
    }


def _problems_of(parser: Parser, record: bytes, error: BaseException) -> dict[str | None, str]:
    """Returns feature → its problem; the feature is None if the whole record is at fault."""
    try:
        values = tf.train.Example.FromString(record).features.feature
    except Exception:
        return {
            None: f"expected a serialized tf.Example, found {len(record)} bytes of another kind"
        }
    problems: dict[str | None, str] = {}
    for key, feature in parser.features.items():
        name = parser.column(key)
        if problem := _problem_with(feature, values.get(name)) or _misfit(feature, values):
            problems[name] = f"feature {name!r}: {problem}"
    return problems or {None: reason_of(error)}


def _misfit(feature: Any, values: Any) -> str | None:
    found = misfit(feature, values)
    return found and f"{found}. Correct what writes the feature"


def _problem_with(feature: Any, value: tf.train.Feature | None) -> str | None:
    kind = None if value is None else value.WhichOneof("kind")
    is_dense = isinstance(feature, tf.io.FixedLenFeature)
    size = math.prod(feature.shape) if is_dense else None
    required = f"expected {size} value(s) of {feature.dtype.name} as the schema requires"
    if kind is None:
        if is_dense and feature.default_value is None:
            return (
                f"{required}, found none. Fill the value upstream, or give the feature a default "
                "in the schema"
            )
        return None
    number = len(getattr(value, kind).value)
    if kind != _KINDS[feature.dtype]:
        return (
            f"expected {_KINDS[feature.dtype]} as the schema says, found {kind} with {number} "
            "value(s). Correct the schema, or what writes the feature"
        )
    if is_dense and number != size:
        return (
            f"{required}, found {number}. Correct the shape in the schema, or what writes the "
            "feature"
        )
    return None
