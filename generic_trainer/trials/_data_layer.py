"""Where an experiment caches its datasets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from generic_trainer.errors import ConfigurationError

__all__ = ["DEFAULT_PATH", "data_layer_root"]

DEFAULT_PATH = "~/data/determined"
_BUCKETS = {"s3": "s3", "gcs": "gs"}


def data_layer_root(layer: Mapping[str, Any]) -> str:
    """Returns the directory, local or remote.

    Args:
        layer: the section `data_layer` of an experiment configuration.

    Raises:
        ConfigurationError: it names no place.
    """
    kind = layer.get("type", "shared_fs")
    if kind == "shared_fs":
        path = layer.get("host_storage_path") or layer.get("container_storage_path")
        return os.path.abspath(os.path.expanduser(path or DEFAULT_PATH))
    if kind in _BUCKETS and layer.get("bucket"):
        folder = str(layer.get("bucket_directory_path") or "").strip("/")
        return f"{_BUCKETS[kind]}://{layer['bucket']}/{folder}".rstrip("/")
    raise ConfigurationError(
        "data_layer must be {'type': 'shared_fs', 'host_storage_path': path}, or 's3' or 'gcs' "
        f"with 'bucket' and 'bucket_directory_path', but got {dict(layer)!r}"
    )
