"""Checks of the outputs of the signatures for examples, their labels and their golden outputs."""

import base64
import contextlib
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np

from generic_trainer._core.texts import did_you_mean, reason_of
from generic_trainer.validation._check import Findings, Skip, check, fail, note, warn
from generic_trainer.validation._feeds import is_tiny
from generic_trainer.validation._manifest import MANIFEST, read_manifest
from generic_trainer.validation._model import PREPROCESSING, ModelUnderTest
from generic_trainer.validation._schema_rows import parsed, without
from generic_trainer.validation._scoring import (
    DOUBLE,
    ODD_ROWS,
    Outputs,
    Scores,
    difference,
    extent,
    is_float,
    not_finite,
)
from generic_trainer.validation._signatures import Signature

ROWS_REMEDY = "return one row per example: BulkInferrer and Evaluator split outputs by row"
NAN_REMEDY = "look for a division by zero, the log of zero, or missing values that became NaN"
MIXING_REMEDY = (
    "normalise with statistics from training (BatchNormalization with training=False, or "
    "Transform) and not over the batch, and keep rows in order"
)
_PADDING_REMEDY = (
    "pad the output to a fixed length, not to the longest row of a batch: clients get other shapes "
    "with other rows"
)
RANDOM_REMEDY = "call the model with training=False: dropout or a random op is live"
FILLING_REMEDY = (
    "fill in a missing value by a number of the training data and not of the batch: a prediction "
    "must not depend on the other rows of a request"
)
_PROBABILITY = re.compile(r"prob(s|as?|ability|abilities)?", re.IGNORECASE)
_NEARLY = 0.02  # by which half precision may miss 0 and 1
_GOLDEN_ROWS = 3
_MAX_VARIABLES = 5  # that a finding names
_RANDOM = re.compile(
    r"(Stateless)?(Random|Shuffle|Multinomial|(Parameterized)?TruncatedNormal)|Rng"
    r"|Stateful(Random|Standard|TruncatedNormal|Uniform)"
)


@check(after="scores", needs="scores", decided_by="rows")
def output_per_row(model: ModelUnderTest) -> Findings:
    """The first dimension of every output is the number of rows.

    Declared shapes may be wrong or unknown. This check counts the rows of each output.

    Example: 8 examples give an output of shape `[16, 3]`.
    """
    for name, scored in model.scored(served=True).items():
        for key, output in sorted(scored.batch.items()):
            if output.shape[:1] != (scored.feed.rows,):
                rows = scored.feed.rows
                shape = list(output.shape)
                yield model.per_row(
                    f"signature {name!r}: {rows} rows give output {key!r} of shape {shape}",
                    ROWS_REMEDY,
                )


@check(needs="scores")
def outputs_finite(model: ModelUnderTest) -> Findings:
    """No output is NaN or infinite.

    One NaN among a thousand predictions turns the Evaluator's metric into NaN, which no threshold
    refuses, and a client shows it as it is. If no consumer matches rows, it is a warning, unless
    the prediction, or each number of the signature, is NaN for all examples. Outputs called
    probabilities that are beyond 0 and 1 cause a warning.

    Example: a feature that is divided by its own mean, which is 0 for one of the eval examples.
    """
    for name, scored in model.scored().items():
        for kind, key, _ in not_finite(scored.batch):
            certain = kind == "NaN" and scored.feed.real and name in model.serving_signatures
            message = f"signature {name!r}: output {key!r} is {kind} for {scored.feed.source}"
            if certain and key in _useless(scored, model.evidence.label_keys):
                yield fail(f"{message}, each of them", NAN_REMEDY, may_be_meant=True)
            else:
                yield model.of_rows(certain, message, NAN_REMEDY)
        for key, output in sorted(scored.batch.items()):
            is_named = scored.feed.real and _PROBABILITY.fullmatch(key.rpartition("/")[2])
            if is_named and is_float(output) and output.dtype.kind != "c":
                least, greatest = extent(output[np.isfinite(output)])
                if least < -_NEARLY or greatest > 1 + _NEARLY:
                    values = f"values from {least:.3g} to {greatest:.3g}"
                    yield warn(
                        f"signature {name!r}: output {key!r} has {values}",
                        "apply the sigmoid or softmax, or give the output another name",
                        may_be_meant=True,
                    )


def _useless(scored: Scores, label_keys: Collection[str]) -> set[str]:
    """Returns outputs without a finite number, which no consumer can have asked for.

    They are outputs with the name of a label, or all numbers of the signature: others may well be
    NaN for the few examples, such as a bound that is seldom known. One example is no evidence.
    """
    numbers = {key: output for key, output in scored.batch.items() if is_float(output)}
    empty = {key for key, output in numbers.items() if not np.isfinite(output).any()}
    if scored.feed.rows < 2:
        return set()
    return empty if len(empty) == len(numbers) else empty.intersection(label_keys)


@check(needs="scores")
def outputs_vary(model: ModelUnderTest) -> Findings:
    """Different examples do not all get the same outputs.

    A model with constant outputs has not read its features, or has learned nothing. It loads,
    serves and has a plausible accuracy if classes are uneven. If some outputs are floats, the
    others, such as keys, do not count, but for names of classes beside one constant.

    Example: a signature that parses `"x"`, but `"X"` in the examples, and fills in the default.
    """
    several = {
        name: scored
        for name, scored in model.served_scores.items()
        # It may return the label, of which a few examples can well have one value.
        if not name.startswith(PREPROCESSING) and scored.feed.real and scored.feed.rows > 1
    }
    if not several:
        raise Skip("nothing to test: no signature scored several examples of the contract")
    for name, scored in several.items():
        outputs = _telling(scored)
        if all(map(_constant, outputs.values())):
            yield warn(
                f"signature {name!r} gives the same outputs for {scored.feed.rows} examples: "
                f"{', '.join(sorted(outputs))}",
                "see whether the features reach the model (names, vocabulary, scaling), and "
                "whether it was trained",
            )


def _telling(scored: Scores) -> Outputs:
    """Returns the outputs that tell whether a model reads its features.

    Keys and classes that stand beside scores may differ by themselves. One constant beside names of
    classes, which occur several times, is no score, but perhaps a threshold.
    """
    rows = {key: output for key, output in scored.batch.items() if scored.has_rows(key)}
    floats = {key: output for key, output in rows.items() if is_float(output)}
    texts = [output for output in rows.values() if output.dtype == object]
    has_classes = any(1 < len(set(text.flat)) <= text.size / 2 for text in texts)
    if has_classes and all((output == output.flat[0]).all() for output in floats.values()):
        return rows
    return floats or rows or scored.batch


def _constant(output: np.ndarray) -> bool:
    return output.ndim > 0 and len(output) > 1 and bool((output == output[:1]).all())


@check(needs="scores", decided_by="rows")
def outputs_utf8(model: ModelUnderTest) -> Findings:
    """Outputs of text are UTF-8, or have a name that ends in `_bytes`.

    The REST API of TF Serving encodes an output in base64 only if its name ends in `_bytes`. It
    writes all others as they are; with bytes that are not UTF-8 the response is not JSON.

    Example: PNG images as the output `image`.
    """
    if not model.contract.may_serve:
        raise Skip("no server reads the model")
    for name, scored in model.scored(served=True).items():
        for key, output in sorted(scored.batch.items()):
            if output.dtype == object and not key.endswith("_bytes") and not _is_utf8(output):
                yield warn(
                    f"signature {name!r}: output {key!r} holds bytes that are not UTF-8; the "
                    "responses of TF Serving by REST are not JSON",
                    f"call the output {key + '_bytes'!r}, or use gRPC alone",
                )


def _is_utf8(output: np.ndarray) -> bool:
    try:
        b"\n".join(output.flat).decode()
    except UnicodeDecodeError:
        return False
    return True


@check(needs="scores", decided_by="rows")
def deterministic(model: ModelUnderTest) -> Findings:
    """The same batch scored twice gives the same outputs.

    If the same request gets different answers, predictions cannot be explained, cached, or compared
    with those of the next model. Outputs that depend on a variable that calls change, too slowly
    for two calls to show it, or on a little noise, cause a warning, and so do differences of
    made-up rows that had to be tiny.

    Example: dropout that is active in the exported function: `model(x, training=True)`; an LSTM
    with `stateful=True`.
    """
    for name, scored in model.scored().items():
        signature = model.signatures[name]
        remedy = remedy_of_varying(signature)
        served = name in model.serving_signatures
        varied = False
        for key in sorted(scored.batch):
            changed, certain = scored.varies(key)
            if changed:
                varied = True
                message = f"signature {name!r}, output {key!r}: the second call gives {changed}"
                if variables := ", ".join(map(repr, signature.assigned[:_MAX_VARIABLES])):
                    message += f"; each call assigns {variables}"
                certain = certain and served and not is_tiny(scored.feed)
                yield model.of_rows(certain, message, remedy)
        if served and not varied and signature.remembered and model.changes_state(name):
            variables = ", ".join(map(repr, signature.remembered[:_MAX_VARIABLES]))
            yield model.of_rows(
                False,
                f"signature {name!r} computes outputs from {variables}, and changes it with its "
                "calls: the same rows have other outputs later",
                remedy,
            )
        draws = any(_RANDOM.match(op) and not op.startswith("Stateless") for op in signature.ops)
        if served and draws and not varied and any(any(scored.apart(k)) for k in scored.batch):
            yield model.of_rows(
                False,
                f"signature {name!r} draws random numbers: each call changes outputs a little",
                RANDOM_REMEDY,
            )
        if served and "Timestamp" in signature.ops:
            yield model.of_rows(
                False,
                f"signature {name!r} reads the clock: the same rows have other outputs later",
                "let the time be an input",
            )


def remedy_of_varying(signature: Signature) -> str:
    """Returns the remedy for a signature whose second call gives other outputs."""
    if signature.assigned and not any(map(_RANDOM.match, signature.ops)):
        return (
            "keep no state from call to call: export without stateful=True, or make the state an "
            "input"
        )
    return RANDOM_REMEDY


@check(needs="scores", decided_by="rows")
def row_independence(model: ModelUnderTest) -> Findings:
    """A row scored alone, or in a smaller batch, has the outputs that it has in the full batch.

    A prediction that depends on its neighbours changes with the traffic, which the Evaluator's
    batches do not show. It is a warning for made-up rows that had to be tiny.

    Example: `BatchNormalization` called with `training=True`; scores that are divided by the sum
    over the batch.
    """
    compared = 0
    for name, scored in model.scored().items():
        for key in sorted(scored.batch):
            if not scored.has_rows(key) or scored.varies(key)[0]:
                continue  # other checks report it
            compared += scored.feed.divisible
            message, certain = first_difference(scored, key)
            if message:
                others = (outputs[key] for outputs in (*scored.single, scored.odd))
                is_other = any(np.shape(rows)[1:] != scored.batch[key].shape[1:] for rows in others)
                is_padded = is_other and not certain
                yield model.of_rows(
                    certain and name in model.serving_signatures and not is_tiny(scored.feed),
                    f"signature {name!r}, output {key!r}: {message}",
                    _PADDING_REMEDY if is_padded else MIXING_REMEDY,
                )
    if not compared:
        raise Skip("nothing to test: no output has rows that can be scored alone")


def first_difference(scored: Scores, key: str) -> tuple[str, bool]:
    """Returns the difference of an output of a row in another batch; see `difference`."""
    batch = scored.batch[key]
    smaller = [
        (f"row {n} alone", single, batch[n : n + 1]) for n, single in enumerate(scored.single)
    ]
    odd = batch[:ODD_ROWS]
    smaller.append((f"a batch of {len(odd)}", scored.odd, odd))
    differences = []
    for what, outputs, expected in smaller:
        changed, certain = scored.differs(key, np.atleast_1d(outputs[key]), expected)
        if changed:
            differences.append((f"{what} gives {changed} in a batch of {len(batch)}", certain))
    if scored.mixes_rows(key):
        differences.append(("rows in another order have outputs of other rows", True))
    return max(differences, key=lambda difference: difference[1], default=("", False))


@check(needs="deterministic")
def golden(model: ModelUnderTest) -> Findings:
    """The model still gives the golden outputs of its manifest.

    Another machine, another TensorFlow or a changed file can change the outputs of a model. The
    manifest of a published model contains its outputs at that time.

    Example: a copy of a published model whose weights were replaced by those of another run.
    """
    scored = model.scores.get("serving_default")
    if scored is not None and scored.feed.real and "serving_default" in dict(_serialized(model)):
        records = scored.feed.records[:_GOLDEN_ROWS]
        # Not those of the batch, by which outputs may be padded or scaled.
        outputs = {
            key: rows.tolist()
            for key, rows in sorted(_score(model, "serving_default", records).items())
            if scored.has_rows(key) and not scored.varies(key)[0]
            if rows.dtype.kind not in "Oc"  # which JSON does not have
        }
        examples = [base64.b64encode(record).decode() for record in records]
        model.facts["golden"] = {"serving_default": {"examples": examples, "outputs": outputs}}
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        known = read_manifest(model.directory).get("golden", {})
    if not known:
        raise Skip("no golden outputs in a manifest")
    for name, rows in known.items():
        yield from _compare_golden(model, name, rows)


def _compare_golden(model: ModelUnderTest, name: str, rows: dict[str, Any]) -> Findings:
    outputs = _score(model, name, map(base64.b64decode, rows["examples"]))
    for output, golden_values in rows["outputs"].items():
        actual = outputs[output]
        # Among strings such as "NaN" numbers would become strings.
        numbers = np.array(golden_values, float if is_float(actual) else None)
        precision = model.precision_of(model.signatures[name]).get(output, DOUBLE)
        changed, _ = difference(actual, numbers.astype(actual.dtype), None, precision)
        if changed:
            yield fail(
                f"signature {name!r}, output {output!r}: {changed} in {MANIFEST}",
                "this is another model than the published one, or this TensorFlow computes it "
                "differently: compare files and versions with the manifest",
            )
    yield note(f"{len(rows['examples'])} golden examples give the published outputs")


@check(needs="scores", decided_by="rows")
def without_label(model: ModelUnderTest) -> Findings:
    """Examples without the label still score, and score the same.

    Requests have no label. A signature that parses it as a required feature scores every example of
    the eval split, and no request.

    Example: `tf.io.parse_example` with the feature spec of the whole schema; a label that leaked
    into the features.
    """
    labels = model.evidence.label_keys
    # Labels of an eval config may be transformed ones, which the schema of raw examples lacks.
    known = model.evidence.seen_dtypes.keys() | (model.evidence.feature_dtypes or {}).keys()
    # Without a schema, the first examples may lack some features.
    say = fail if model.evidence.schema is not None else warn
    for label in sorted(set(model.contract.label_keys) - known if known else ()):
        near = did_you_mean(label, known)
        yield say(
            f"no feature {label!r} in the schema or the examples{near}",
            "name the label in label_keys as the examples do",
        )
    present = []
    for name, scored in _serialized(model):
        examples = parsed(scored.feed.records)
        if any(labels & example.features.feature.keys() for example in examples):
            present.append((name, scored, examples))
    if not present:
        raise Skip("no examples with a known label: set label_keys and examples in the contract")
    for name, scored, examples in present:
        unlabelled = [without(example, labels).SerializeToString() for example in examples]
        try:
            outputs = _score(model, name, unlabelled)
        except Exception as error:
            yield fail(
                f"signature {name!r} needs the label {sorted(labels)}: {reason_of(error)}",
                "leave the label out of the feature spec that the signature parses "
                "(feature_spec.pop(LABEL_KEY)): requests have none",
            )
            continue
        for key, output in sorted(outputs.items()):
            changed, _ = scored.compared(key, output, scored.batch[key])
            if changed and scored.is_beyond_noise(key, output):
                yield fail(
                    f"signature {name!r}: output {key!r} depends on the label: {changed}",
                    "the label leaked into the features: remove it from the model's inputs",
                )


def _serialized(model: ModelUnderTest) -> Iterator[tuple[str, Scores]]:
    """Yields the signatures that consumers call and that serialized examples have scored."""
    for name, scored in model.fresh(model.served_scores):
        if scored.feed.serialized and scored.feed.divisible:
            yield name, scored


def _score(model: ModelUnderTest, name: str, records: Iterable[bytes]) -> Outputs:
    (key,) = model.signatures[name].inputs
    return model.call(name, {key: np.array(list(records), dtype=object)})
