"""Protos that a contract holds, or names by path."""

from __future__ import annotations

from typing import Any

from generic_trainer.proto_files import read_proto, read_schema

__all__ = ["load_eval_config", "load_schema"]


def load_schema(source: Any) -> Any:
    """Returns the `Schema` of a path, or the proto itself; None for None.

    Raises:
        DataError: the file cannot be read.
    """
    return read_schema(source) if isinstance(source, str) else source


def load_eval_config(source: Any) -> Any:
    """Returns the `EvalConfig` of a path, or the proto itself; None for None.

    Raises:
        DataError: the file cannot be read.
    """
    if not isinstance(source, str):
        return source  # importing TFMA takes seconds
    from tensorflow_model_analysis.proto import config_pb2

    return read_proto(source, config_pb2.EvalConfig, "eval config")
