"""Is the graph the one that was exported?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail, skip

__all__ = ["fingerprint"]

_HASHES = (
    "saved_model_checksum",
    "graph_def_program_hash",
    "signature_def_hash",
    "saved_object_graph_hash",
    "checkpoint_hash",
)


@check("fingerprint", needs=("parses",))
def fingerprint(model: ModelUnderTest) -> Iterator[Finding]:
    """The fingerprint that was written at the export still fits the files.

    It covers saved_model.pb and the index of the variables; the variables' own bytes have
    checksums of their own, and assets are covered by the manifest.
    """
    if Path("fingerprint.pb") not in model.files:
        yield skip("no fingerprint.pb (written by TensorFlow 2.12 and later)")
        return
    stored, found = _stored(model), _recomputed(model)
    if isinstance(stored, str):
        yield fail(f"fingerprint.pb does not parse: {stored}", "export again, copy whole files")
    elif stored.version.producer != found.version.producer:
        yield skip("written by a TensorFlow whose fingerprints are computed in another way")
    else:
        changed = [name for name in _HASHES if getattr(stored, name) != getattr(found, name)]
        if changed:
            yield fail(
                f"{', '.join(changed)} differ from fingerprint.pb: files were edited, damaged or "
                "mixed with another model's after the export",
                "publish the export as it was written; if it was edited on purpose, delete "
                "fingerprint.pb or load and save the model again",
            )


def _stored(model: ModelUnderTest) -> Any:
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import fingerprint_pb2

    content = (model.directory / "fingerprint.pb").read_bytes()
    try:
        return fingerprint_pb2.FingerprintDef.FromString(content)
    except DecodeError as error:
        return str(error)


def _recomputed(model: ModelUnderTest) -> Any:
    from tensorflow.core.protobuf import fingerprint_pb2
    from tensorflow.python.saved_model.pywrap_saved_model import fingerprinting

    content = fingerprinting.CreateFingerprintDef(str(model.directory))
    return fingerprint_pb2.FingerprintDef.FromString(content)
