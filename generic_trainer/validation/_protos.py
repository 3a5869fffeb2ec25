"""Protos that a contract holds, or names by path."""

from __future__ import annotations

from typing import Any

from generic_trainer.errors import DataError

__all__ = ["load_eval_config", "load_schema"]


def load_schema(source: Any) -> Any:
    """Returns the `Schema` of a path (text format) or the proto itself; None for None.

    Raises:
        DataError: the file cannot be read.
    """
    if not isinstance(source, str):
        return source
    from tensorflow_metadata.proto.v0 import schema_pb2

    return _load(source, schema_pb2.Schema, "schema")


def load_eval_config(source: Any) -> Any:
    """Returns the `EvalConfig` of a path (text format or JSON) or the proto itself; None for None.

    Raises:
        DataError: the file cannot be read.
    """
    if not isinstance(source, str):
        return source  # importing TFMA takes seconds
    from tensorflow_model_analysis.proto import config_pb2

    return _load(source, config_pb2.EvalConfig, "eval config")


def _load(source: Any, message: Any, subject: str) -> Any:
    import tensorflow as tf
    from google.protobuf import json_format, text_format

    try:
        with tf.io.gfile.GFile(source, "r") as stream:
            text = stream.read()
        parse = json_format.Parse if text.lstrip().startswith("{") else text_format.Parse
        return parse(text, message())
    except (tf.errors.OpError, json_format.ParseError, text_format.ParseError) as error:
        raise DataError(f"the {subject} {source} cannot be read: {error}") from error
