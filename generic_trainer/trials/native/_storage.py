"""Where an experiment on a cluster keeps what it makes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from generic_trainer.trials._errors import InvalidExperimentException

__all__ = ["storage_dir"]

_DEFAULT = "/tmp/determined-cp"  # of Determined's own configuration


def storage_dir(config: Mapping[str, Any]) -> str:
    """Returns the directory that `checkpoint_storage` of a configuration names.

    Raises:
        InvalidExperimentException: it names none.
    """
    storage = config.get("checkpoint_storage") or {}
    kind = storage.get("type", "shared_fs")
    if kind == "shared_fs":
        return os.path.join(storage.get("host_path", _DEFAULT), storage.get("storage_path") or "")
    if kind in ("gcs", "s3") and storage.get("bucket"):
        scheme = {"gcs": "gs", "s3": "s3"}[kind]
        return f"{scheme}://{storage['bucket']}/{(storage.get('prefix') or '').strip('/')}"
    raise InvalidExperimentException(
        "checkpoint_storage must be {'type': 'shared_fs', 'host_path': path}, or 'gcs' or 's3' "
        f"with 'bucket', but got {storage!r}"
    )
