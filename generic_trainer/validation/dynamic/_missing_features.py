"""Does the model score examples as they arrive when it serves?"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from generic_trainer.validation._check import check
from generic_trainer.validation._compare import difference
from generic_trainer.validation._labels import label_keys
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail, skip
from generic_trainer.validation._scoring import Scores, call, first_line

__all__ = ["without_label", "without_optional"]


@check("without_label", needs=("scores",))
def without_label(model: ModelUnderTest) -> Iterator[Finding]:
    """Examples without the label still score, and score the same."""
    labels = label_keys(model)
    present = [(n, scores) for n, scores in _real(model) if _holds(scores, labels)]
    if not present:
        yield skip("no examples with a known label: set label_keys and examples in the contract")
    for name, scores in present:
        stripped = [_strip(record, labels) for record in _records(scores)]
        try:
            outputs = _rescore(model, name, scores, stripped)
        except Exception as error:
            yield fail(
                f"signature {name!r} needs the label {sorted(labels)}: {first_line(error)}",
                "leave the label out of the feature spec that the signature parses "
                "(feature_spec.pop(LABEL_KEY)): it is not known when the model serves",
            )
            continue
        for key, output in sorted(outputs.items()):
            told, _ = difference(output, scores.batch[key])
            if told:
                yield fail(
                    f"signature {name!r}: output {key!r} depends on the label: {told}",
                    "the label leaked into the features: remove it from the model's inputs",
                )


@check("without_optional", needs=("scores",))
def without_optional(model: ModelUnderTest) -> Iterator[Finding]:
    """Examples without the features that the schema calls optional still score."""
    optional = _optional(model)
    if not optional:
        yield skip("no schema, or all of its features are required")
        return
    for name, scores in _real(model):
        stripped = [_strip(record, optional) for record in _records(scores)]
        try:
            _rescore(model, name, scores, stripped)
        except Exception as error:
            yield fail(
                f"signature {name!r} fails when {sorted(optional)} are absent, which the schema "
                f"allows: {first_line(error)}",
                "parse them as VarLenFeature or give FixedLenFeature a default_value; if they are "
                "always there, set presence.min_fraction: 1 in the schema",
            )


def _real(model: ModelUnderTest) -> Iterator[tuple[str, Scores]]:
    """The signatures that consumers call and that were scored with real, serialized examples."""
    for name, scores in model.scores.items():
        if name in model.serving_signatures and scores.feed.real and scores.feed.serialized:
            yield name, scores


def _records(scores: Scores) -> list[bytes]:
    (records,) = scores.feed.inputs.values()
    return list(records)


def _rescore(model: ModelUnderTest, name: str, scores: Scores, records: list[bytes]) -> dict:
    import numpy as np

    (key,) = scores.feed.inputs
    return call(model.loaded.signatures[name], {key: np.array(records, dtype=object)})


def _holds(scores: Scores, keys: Collection[str]) -> bool:
    import tensorflow as tf

    parsed = (tf.train.Example.FromString(record) for record in _records(scores))
    return any(key in example.features.feature for example in parsed for key in keys)


def _strip(record: bytes, keys: Collection[str]) -> bytes:
    import tensorflow as tf

    example = tf.train.Example.FromString(record)
    for key in keys:
        example.features.feature.pop(key, None)
    return example.SerializeToString(deterministic=True)


def _optional(model: ModelUnderTest) -> set[str]:
    if model.schema is None:
        return set()
    return {
        feature.name
        for feature in model.schema.feature
        if not (feature.presence.min_fraction == 1 or feature.presence.min_count > 0)
        and feature.name not in label_keys(model)
    }
