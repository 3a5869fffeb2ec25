"""Reads the schema of a data set."""

from __future__ import annotations

from typing import Any

from generic_trainer.errors import DataError

__all__ = ["read_schema"]


def read_schema(path: str) -> Any:
    """Returns the `tensorflow_metadata` Schema in a file in text format.

    Args:
        path: the file, local or remote.

    Raises:
        DataError: the file cannot be read or holds no schema.
    """
    import tensorflow as tf
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    try:
        with tf.io.gfile.GFile(path) as file:
            return text_format.Parse(file.read(), schema_pb2.Schema())
    except (tf.errors.OpError, text_format.ParseError, UnicodeDecodeError) as error:
        raise DataError(
            f"A schema must be a schema.pbtxt in text format, but {path}: {error}"
        ) from error
