"""Rows and what the model makes of them, for the manifest."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np

from generic_trainer.validation._check import check
from generic_trainer.validation._compare import difference
from generic_trainer.validation._manifest import MANIFEST, read_manifest
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail, note, skip
from generic_trainer.validation._scoring import Scores, call

__all__ = ["golden"]

_ROWS = 3


@check("golden", needs=("deterministic",))
def golden(model: ModelUnderTest) -> Iterator[Finding]:
    """The model still gives the golden outputs of its manifest."""
    scores = model.scores.get("serving_default")
    if scores is not None and scores.feed.real and scores.feed.serialized:
        model.facts["golden"] = {"serving_default": _record(scores)}
    known = _known(model)
    if not known:
        yield skip("no golden outputs in a manifest")
    for name, rows in known.items():
        yield from _compare(model, name, rows)


def _record(scores: Scores) -> dict[str, Any]:
    (records,) = scores.feed.inputs.values()
    return {
        "examples": [base64.b64encode(record).decode() for record in records[:_ROWS]],
        "outputs": {key: _plain(value[:_ROWS]) for key, value in sorted(scores.batch.items())},
    }


def _known(model: ModelUnderTest) -> dict[str, Any]:
    try:
        return read_manifest(model.directory).get("golden", {})
    except (OSError, ValueError):
        return {}


def _compare(model: ModelUnderTest, name: str, rows: dict[str, Any]) -> Iterator[Finding]:
    (key,) = model.signatures[name].inputs
    records = np.array([base64.b64decode(text) for text in rows["examples"]], dtype=object)
    found = call(model.loaded.signatures[name], {key: records})
    for output, expected in rows["outputs"].items():
        told, _ = difference(found[output], _restored(expected, found[output].dtype))
        if told:
            yield fail(
                f"signature {name!r}, output {output!r}: {told} in {MANIFEST}",
                "this is not the function that was published, or this TensorFlow computes it "
                "differently: compare the versions in the manifest",
            )
    yield note(f"{len(records)} golden examples give the published outputs")


def _restored(values: Any, dtype: np.dtype) -> np.ndarray:
    if dtype.kind != "O":
        return np.array(values).astype(dtype)
    return np.vectorize(str.encode, otypes=[object])(values)


def _plain(values: np.ndarray) -> Any:
    if values.dtype.kind == "O":
        return np.vectorize(lambda v: v.decode(errors="replace"), otypes=[object])(values).tolist()
    return values.tolist()
