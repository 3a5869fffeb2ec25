"""`manifest.json`: the files that were published, for consumers to prove that theirs are the same.

It is stored beside `saved_model.pb`, so that copies of the model's directory contain it.
"""

import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

import generic_trainer
from generic_trainer._core.files import files_below, gfile, sha256_of_file, write_whole
from generic_trainer.validation._report import ValidationReport
from generic_trainer.validation._signature import SIGNATURE

MANIFEST = "manifest.json"


def write_manifest(model_dir: str, report: ValidationReport, **inputs: str) -> str:
    """Writes `manifest.json` into a model directory that passed, local or remote.

    It holds the SHA-256 and size of every file, the verdict of every check, the versions that
    were used, and, if the contract had real examples, golden inputs and outputs (base64 of the
    serialized examples, and the outputs of `serving_default` that are numbers).

    Args:
        model_dir: the model's directory.
        report: the result of `validate_saved_model`.
        **inputs: digests or values of the inputs, code and hyperparameters of the training.

    Returns:
        The SHA-256 of the manifest itself, in hex.
    """
    names = (n for n in files_below(model_dir) if n not in (MANIFEST, SIGNATURE))
    paths = {name: os.path.join(model_dir, name) for name in names}
    manifest = {
        "format_version": 1,
        "files": {
            name: {"sha256": sha256_of_file(path), "size_bytes": gfile().stat(path).length}
            for name, path in paths.items()
        },
        "inputs": inputs,
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
    write_whole(os.path.join(model_dir, MANIFEST), text)
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns the manifest of a model directory.

    Raises:
        ValueError: it is not a manifest.
    """
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ValueError(f"{MANIFEST} lists no files")
    return manifest
