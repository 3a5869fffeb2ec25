"""`manifest.json`: what was published, so that any consumer can prove that it has the same.

The file lies beside `saved_model.pb`, where a copy of the model's directory takes it along.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

import generic_trainer
from generic_trainer.validation._report import ValidationReport

__all__ = ["MANIFEST", "read_manifest", "sha256", "write_manifest"]

MANIFEST = "manifest.json"
_CHUNK = 1 << 20


def write_manifest(model_dir: str, report: ValidationReport) -> str:
    """Writes `manifest.json` into a model directory that passed, local or remote.

    It holds the SHA-256 and size of every file, the verdict of every check, the versions that
    were used, and golden inputs and outputs (base64 of the serialized examples, and what
    `serving_default` returned for them) where the contract had real examples.

    Args:
        model_dir: the model's directory.
        report: what `validate_saved_model` said about it.

    Returns:
        The SHA-256 of the manifest itself, in hex.
    """
    import tensorflow as tf

    manifest = {
        "format_version": 1,
        "files": _files(model_dir),
        "checks": {result.name: result.status for result in report.results},
        "versions": {
            "generic_trainer": generic_trainer.__version__,
            "python": platform.python_version(),
            "tensorflow": report.facts.get("tensorflow_version"),
            "saved_by_tensorflow": report.facts.get("saved_by_tensorflow"),
        },
        "golden": report.facts.get("golden", {}),
    }
    text = json.dumps(manifest, indent=2) + "\n"
    with tf.io.gfile.GFile(os.path.join(model_dir, MANIFEST), "w") as file:
        file.write(text)
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns the manifest of a model directory.

    Raises:
        ValueError: it is no manifest.
    """
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ValueError(f"{MANIFEST} lists no files")
    return manifest


def sha256(file: str | os.PathLike[str]) -> str:
    """Returns the SHA-256 of a file in hex."""
    import tensorflow as tf

    digest = hashlib.sha256()
    with tf.io.gfile.GFile(file, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _files(model_dir: str) -> dict[str, dict[str, Any]]:
    import tensorflow as tf

    paths = sorted(
        os.path.join(folder, name)
        for folder, _, names in tf.io.gfile.walk(model_dir)
        for name in names
        if name != MANIFEST
    )
    return {
        os.path.relpath(path, model_dir): {
            "sha256": sha256(path),
            "size_bytes": tf.io.gfile.stat(path).length,
        }
        for path in paths
    }
