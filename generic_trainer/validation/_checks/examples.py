"""Checks of the contract's own examples: their golden outputs, and what may be absent from them."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np

from generic_trainer._core.texts import did_you_mean, reason_of
from generic_trainer.validation._check import Finding, check, fail, note, skip, warn
from generic_trainer.validation._manifest import MANIFEST, read_manifest
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._schema_rows import without
from generic_trainer.validation._scoring import Outputs, Scores, call, difference

_GOLDEN_ROWS = 3


@check("golden", needs=("deterministic",))
def golden(model: ModelUnderTest) -> Iterator[Finding]:
    """The model still gives the golden outputs of its manifest.

    Another machine, another TensorFlow, or a change of a file can have the same model give other
    numbers. The manifest of a published model has outputs that it gave then.

    Example: a copy of a published model whose weights were replaced by those of another run.
    """
    scored = model.scores.get("serving_default")
    if scored is not None and scored.feed.real and "serving_default" in dict(_serialized(model)):
        outputs = {
            key: _plain(rows[:_GOLDEN_ROWS])
            for key, rows in sorted(scored.batch.items())
            if rows.shape[:1] == (scored.feed.rows,) and not scored.varies(key)[0]
        }
        examples = [base64.b64encode(record).decode() for record in _records(scored)[:_GOLDEN_ROWS]]
        model.facts["golden"] = {"serving_default": {"examples": examples, "outputs": outputs}}
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        known = read_manifest(model.directory).get("golden", {})
    if not known:
        yield skip("no golden outputs in a manifest")
    for name, rows in known.items():
        yield from _compare_golden(model, name, rows)


def _compare_golden(model: ModelUnderTest, name: str, rows: dict[str, Any]) -> Iterator[Finding]:
    outputs = _score(model, name, map(base64.b64decode, rows["examples"]))
    for output, golden_values in rows["outputs"].items():
        actual = outputs[output]
        changed, _ = difference(actual, _restored(golden_values, actual.dtype))
        if changed:
            yield fail(
                f"signature {name!r}, output {output!r}: {changed} in {MANIFEST}",
                "this is not the function that was published, or this TensorFlow computes it "
                "differently: compare the versions in the manifest",
            )
    yield note(f"{len(rows['examples'])} golden examples give the published outputs")


def _restored(values: Any, dtype: np.dtype) -> np.ndarray:
    if dtype.kind != "O":
        return np.array(values).astype(dtype)
    return np.vectorize(str.encode, otypes=[object])(values)


def _plain(values: np.ndarray) -> Any:
    if values.dtype.kind == "O":
        return np.vectorize(lambda v: v.decode(errors="replace"), otypes=[object])(values).tolist()
    return values.tolist()


@check("without_label", needs=("scores",))
def without_label(model: ModelUnderTest) -> Iterator[Finding]:
    """Examples without the label still score, and score the same.

    Examples have no label when the model serves. A signature that parses it as a required feature
    scores every example of the eval split, and none of a user's.

    Example: `tf.io.parse_example` with the feature spec of the whole schema; a label that leaked
    into the features.
    """
    labels = model.label_keys
    # Those of an eval config may be what Transform makes, which the schema of raw examples lacks.
    known = _known_features(model)
    # Without a schema, what the first examples have may be a part of what there is.
    say = fail if model.schema is not None else warn
    for label in sorted(set(model.contract.label_keys) - known if known else ()):
        yield say(
            f"no feature {label!r} in the schema or the examples{did_you_mean(label, known)}",
            "name the label in label_keys as the examples do",
        )
    present = [(n, scored) for n, scored in _serialized(model) if _holds(scored, labels)]
    if not present:
        yield skip("no examples with a known label: set label_keys and examples in the contract")
    for name, scored in present:
        try:
            outputs = _score(model, name, (_without(labels, record) for record in _records(scored)))
        except Exception as error:
            yield fail(
                f"signature {name!r} needs the label {sorted(labels)}: {reason_of(error)}",
                "leave the label out of the feature spec that the signature parses "
                "(feature_spec.pop(LABEL_KEY)): it is not known when the model serves",
            )
            continue
        for key, output in sorted(outputs.items()):
            changed, _ = difference(output, scored.batch[key])
            if changed:
                yield fail(
                    f"signature {name!r}: output {key!r} depends on the label: {changed}",
                    "the label leaked into the features: remove it from the model's inputs",
                )


def _serialized(model: ModelUnderTest) -> Iterator[tuple[str, Scores]]:
    """Yields the signatures that consumers call and that serialized examples have scored."""
    for name, scored in model.served_scores.items():
        if scored.feed.serialized and scored.feed.divisible:
            yield name, scored


def _records(scored: Scores) -> list[bytes]:
    (records,) = scored.feed.inputs.values()
    return list(records)


def _score(model: ModelUnderTest, name: str, records: Iterable[bytes]) -> Outputs:
    (key,) = model.signatures[name].inputs
    return call(model.loaded.signatures[name], {key: np.array(list(records), dtype=object)})


def _holds(scored: Scores, keys: Collection[str]) -> bool:
    import tensorflow as tf

    parsed = (tf.train.Example.FromString(record) for record in _records(scored))
    return any(key in example.features.feature for example in parsed for key in keys)


def _without(keys: Iterable[str], record: bytes) -> bytes:
    import tensorflow as tf

    example = without(tf.train.Example.FromString(record), keys)
    return bytes(example.SerializeToString(deterministic=True))


def _known_features(model: ModelUnderTest) -> set[str]:
    """Returns the features of schema and examples."""
    import tensorflow as tf

    known = set() if model.schema is None else {feature.name for feature in model.schema.feature}
    for record in model.records:
        known.update(tf.train.Example.FromString(record).features.feature)
    return known
