"""Protos in files that people and tools write."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from generic_trainer._core.files import gfile, read_text, read_whole
from generic_trainer._core.lazy import needing_tfx
from generic_trainer._core.texts import parse_json_object
from generic_trainer.errors import DataError

_PATHS = (str, os.PathLike)


def load_schema(source: Any) -> Any:
    """Returns the `tensorflow_metadata` Schema of a path, or the proto itself; None for None.

    Raises:
        DataError: the file cannot be read.
    """
    if not isinstance(source, _PATHS):
        return source
    from tensorflow_metadata.proto.v0 import schema_pb2

    return read_proto(os.fspath(source), schema_pb2.Schema, "schema")


def load_eval_config(source: Any) -> Any:
    """Returns the `tfma.EvalConfig` of a path, or the proto itself; None for None.

    Raises:
        DataError: the file cannot be read.
    """
    if not isinstance(source, _PATHS):
        return source
    with needing_tfx("An eval config"):
        from tensorflow_model_analysis.proto import config_pb2

    return read_proto(os.fspath(source), config_pb2.EvalConfig, "eval config")


def load_hyperparameters(path: str | None) -> dict[str, Any] | None:
    """Returns the `keras_tuner.HyperParameters` config in a file of a Tuner; None for None.

    Raises:
        DataError: it is not a JSON object.
    """
    try:
        return None if path is None else parse_json_object(read_text(path))
    except (OSError, ValueError) as error:
        raise DataError(
            f"Hyperparameters must be a JSON object, but {path} is none: {error}. Run the Tuner "
            "again.",
            path=path,
        ) from error


def load_statistics(source: Any) -> Any:
    """Returns the `DatasetFeatureStatisticsList` of files, or the proto itself.

    Args:
        source: a path or a pattern of files, which hold the proto as StatisticsGen writes it, or
            in text format where their names end with `txt`.

    Returns:
        The proto, with the data sets of all of the files.

    Raises:
        DataError: no file matches, or one cannot be read.
    """
    if not isinstance(source, _PATHS):
        return source
    from tensorflow_metadata.proto.v0 import statistics_pb2

    message, pattern = statistics_pb2.DatasetFeatureStatisticsList, os.fspath(source)
    merged = message()
    with _reading(pattern, message, "statistics"):
        paths = sorted(gfile().glob(pattern)) or [pattern]
    for path in paths:
        with _reading(path, message, "statistics"):
            if path.endswith("txt"):
                merged.MergeFrom(parse_proto(read_text(path), message))
            else:
                merged.MergeFrom(message.FromString(read_whole(path)))
    return merged


def parse_eval_config(text: str) -> Any:
    """Returns the `tfma.EvalConfig` in a text; see `parse_proto`."""
    with needing_tfx("An eval config"):
        from tensorflow_model_analysis.proto import config_pb2

    return parse_proto(text, config_pb2.EvalConfig)


def read_proto(path: str, message: Any, subject: str) -> Any:
    """Returns the proto in a file in text format, or as JSON if it begins with a brace.

    Args:
        path: the file, local or remote.
        message: the class of the proto.
        subject: the name of the file's kind in the error.

    Raises:
        DataError: the file cannot be read as that proto.
    """
    with _reading(path, message, subject):
        return parse_proto(read_text(path), message)


@contextlib.contextmanager
def _reading(path: str, message: Any, subject: str) -> Iterator[None]:
    """Explains errors of a file system or a parser; see `read_proto`."""
    try:
        yield
    except Exception as error:  # the class depends on both
        raise DataError(
            f"the {subject} {path} cannot be read as a {message.DESCRIPTOR.full_name}: {error}",
            path=path,
        ) from error


def parse_proto(text: str, message: Any) -> Any:
    """Returns a proto in text format, or as JSON if it begins with a brace.

    Raises:
        ValueError: the text is not a message of this class.
    """
    from google.protobuf import json_format, text_format

    try:
        parse = json_format.Parse if text.lstrip().startswith("{") else text_format.Parse
        return parse(text, message())
    except Exception as error:  # both parsers raise other errors than `ParseError`, too
        raise ValueError(
            f"it is not a {message.DESCRIPTOR.full_name} in text format or JSON "
            f"({type(error).__name__}: {error})"
        ) from error
