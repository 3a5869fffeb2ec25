"""Checks of the contract's examples: their golden outputs, and their labels."""

import base64
import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from generic_trainer._core.texts import did_you_mean, reason_of
from generic_trainer.validation._check import Finding, Skip, check, fail, note, warn
from generic_trainer.validation._manifest import MANIFEST, read_manifest
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._schema_rows import parsed, without
from generic_trainer.validation._scoring import Outputs, Scores, call, difference

_GOLDEN_ROWS = 3


@check(needs=("deterministic",))
def golden(model: ModelUnderTest) -> Iterator[Finding]:
    """The model still gives the golden outputs of its manifest.

    Another machine, another TensorFlow or a changed file can change the outputs of a model. The
    manifest of a published model contains its outputs at that time.

    Example: a copy of a published model whose weights were replaced by those of another run.
    """
    scored = model.scores.get("serving_default")
    if scored is not None and scored.feed.real and "serving_default" in dict(_serialized(model)):
        outputs = {
            key: rows[:_GOLDEN_ROWS].tolist()
            for key, rows in sorted(scored.batch.items())
            if rows.shape[:1] == (scored.feed.rows,) and not scored.varies(key)[0]
            if rows.dtype.kind != "O"
        }
        first = scored.feed.records[:_GOLDEN_ROWS]
        examples = [base64.b64encode(record).decode() for record in first]
        model.facts["golden"] = {"serving_default": {"examples": examples, "outputs": outputs}}
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        known = read_manifest(model.directory).get("golden", {})
    if not known:
        raise Skip("no golden outputs in a manifest")
    for name, rows in known.items():
        yield from _compare_golden(model, name, rows)


def _compare_golden(model: ModelUnderTest, name: str, rows: dict[str, Any]) -> Iterator[Finding]:
    outputs = _score(model, name, map(base64.b64decode, rows["examples"]))
    for output, golden_values in rows["outputs"].items():
        actual = outputs[output]
        changed, _ = difference(actual, np.array(golden_values).astype(actual.dtype))
        if changed:
            message = f"signature {name!r}, output {output!r}: {changed} in {MANIFEST}"
            yield fail(message, "compare the files, and the versions of TensorFlow, with it")
    yield note(f"{len(rows['examples'])} golden examples give the published outputs")


@check(needs=("scores",), decided_by="rows")
def without_label(model: ModelUnderTest) -> Iterator[Finding]:
    """Examples without the label still score, and score the same.

    Requests have no label. A signature that parses it as a required feature scores every example of
    the eval split, and no request.

    Example: `tf.io.parse_example` with the feature spec of the whole schema; a label that leaked
    into the features.
    """
    labels = model.label_keys
    # Labels of an eval config may be transformed ones, which the schema of raw examples lacks.
    known = model.seen_dtypes.keys() | (model.feature_dtypes or {}).keys()
    # Without a schema, the first examples may lack some features.
    say = fail if model.schema is not None else warn
    for label in sorted(set(model.contract.label_keys) - known if known else ()):
        near = did_you_mean(label, known)
        message = f"no feature {label!r} in the schema or the examples{near}"
        yield say(message, "name the label in label_keys as the examples do")
    present = [
        (name, scored)
        for name, scored in _serialized(model)
        if any(labels & each.features.feature.keys() for each in parsed(scored.feed.records))
    ]
    if not present:
        raise Skip("no examples with a known label: set label_keys and examples in the contract")
    for name, scored in present:
        examples = [without(example, labels) for example in parsed(scored.feed.records)]
        unlabelled = [example.SerializeToString(deterministic=True) for example in examples]
        try:
            outputs = _score(model, name, unlabelled)
        except Exception as error:
            message = f"signature {name!r} needs the label {sorted(labels)}: {reason_of(error)}"
            yield fail(message, "leave the label out of the feature spec that it parses")
            continue
        for key, output in sorted(outputs.items()):
            changed, _ = difference(output, scored.batch[key])
            if changed:
                message = f"signature {name!r}: output {key!r} depends on the label: {changed}"
                yield fail(message, "remove the label from the model's inputs")


def _serialized(model: ModelUnderTest) -> Iterator[tuple[str, Scores]]:
    """Yields the signatures that consumers call and that serialized examples have scored."""
    for name, scored in model.served_scores.items():
        if scored.feed.serialized and scored.feed.divisible:
            yield name, scored


def _score(model: ModelUnderTest, name: str, records: Iterable[bytes]) -> Outputs:
    (key,) = model.signatures[name].inputs
    return call(model.loaded.signatures[name], {key: np.array(list(records), dtype=object)})
