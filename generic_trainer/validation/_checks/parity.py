"""Checks of what models in other formats, and quantised ones, predict: as their source does."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from generic_trainer._core.texts import reason_of
from generic_trainer.validation._check import Finding, check, fail, note, skip, warn
from generic_trainer.validation._checks.graph import file_ops
from generic_trainer.validation._feeds import feed_for
from generic_trainer.validation._formats.comparison import (
    Pair,
    accuracy,
    deviation,
    labels_of,
    outputs_paired,
    pair_up,
    tolerance,
)
from generic_trainer.validation._formats.contents import MissingLibraryError, Run
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._scoring import (
    Feed,
    Outputs,
    call,
    difference,
    is_float,
)

_BATCH = 64
_MAX_DROP = 0.01  # of accuracy, that nobody is told of
_FEW = 0.05  # of what a quantised model returns, that may be farther from the source
_PARITY_REMEDY = (
    "convert it again from the SavedModel that is published, with the preprocessing that it has; "
    "how far it may be is for ServingContract(parity_atol=..., parity_rtol=...) to say"
)
_UNCOMPARED_REMEDY = (
    "keep names and shapes when you convert, or export a signature with the same inputs; without "
    "parity_atol, parity_rtol and max_accuracy_drop in the contract nothing has to be compared"
)
_SAFE_REMEDY = "see what `generic-trainer validate` says of it, or allow its ops by allowed_ops"
_QUANTISED_REMEDY = (
    "give the converter a representative data set, keep sensitive layers in float, or say how far "
    "it may be: ServingContract(parity_atol=..., parity_rtol=..., max_accuracy_drop=...)"
)


@dataclasses.dataclass(frozen=True)
class _Subject:
    """A model that can be run, and is compared with its source."""

    name: str
    signatures: Mapping[str, Any]
    quantised: str
    start: Callable[[], Run]


@check("format_scores", needs=("other_formats", "embedded_code", "inputs_read"))
def format_scores(model: ModelUnderTest) -> Iterator[Finding]:
    """Models in other formats that can be run here score rows, without NaN.

    A file that is whole may still fail with its first row. TFLite and ONNX models are run on rows
    of the eval split here; pickles never are.

    Example: a TFLite model whose ops need the Flex delegate, or that gives NaN after quantisation.
    """
    subjects = list(_artifacts(model))
    if not subjects:
        yield skip("no file in another format that is run here")
    for subject in subjects:
        try:
            run = subject.start()
        except MissingLibraryError as error:
            yield note(f"{subject.name} is not run: {error}")
            continue
        except Exception as error:
            message = f"{subject.name} cannot be loaded: {reason_of(error)}"
            yield (warn if model.is_saved_model else fail)(message, "convert or save it again")
            continue
        for name, signature in subject.signatures.items():
            yield from _scored(model, subject, name, signature, run)


def _scored(
    model: ModelUnderTest, subject: _Subject, name: str, signature: Any, run: Run
) -> Iterator[Finding]:
    feed = feed_for(model, signature, model.records)
    if feed is None:
        return
    judge = fail if feed.real and not model.is_saved_model else warn
    where = f"{subject.name}, {name!r}"
    try:
        outputs = run(name, feed.inputs)
    except Exception as error:
        yield judge(
            f"{where} with {feed.source}: {reason_of(error)}",
            "whoever runs it will see this error, if the rows are such; name real ones with "
            "ServingContract(examples=...)",
        )
        return
    for key, output in sorted(outputs.items()):
        if is_float(output) and np.isnan(output.astype(np.float64)).any():
            yield judge(
                f"{where}: output {key!r} has NaN for {feed.source}",
                "look for a division by zero or the log of zero, and for numbers that are beyond "
                "what float16 or int8 can hold",
            )
    yield note(f"{where} scored {feed.rows} rows of {feed.source}")


@check("parity", needs=("format_scores",))
def parity(model: ModelUnderTest) -> Iterator[Finding]:
    """Models in other formats, and quantised ones, predict what their source predicts.

    Converting and quantising change the numbers, mostly by little. Its source is the only thing to
    tell whether it was little.

    Example: a model that was quantised without a representative dataset, which is off by 0.3.
    `parity_atol`, `parity_rtol` and `max_accuracy_drop` say how much is accepted.
    """
    subjects = list(_artifacts(model))
    if model.contract.source_model is not None and model.scores:
        named = {name: model.signatures[name] for name in model.served_scores}
        run = _run_of(model)
        subjects.insert(0, _Subject("the SavedModel", named, _precision(model), lambda: run))
    unread = [str(a.path) for a, contents in model.readable_artifacts if contents.start is None]
    if not subjects or model.source is None:
        where = "no SavedModel to compare with, beside it or by ServingContract(source_model=...)"
        is_pair = subjects or (model.contract.source_model is None and model.is_saved_model)
        what = where if is_pair else "; ".join(["nothing to compare is run here", *unread])
        yield _not_compared(what) if model.contract.compares else skip(what)
        return
    if model.source is not model and file_ops.run(model.source).status == "fail":
        yield fail("the source model reaches files or the network: not run", _SAFE_REMEDY)
        return
    try:
        signatures, source = model.source.signatures, _run_of(model.source)
    except Exception as error:
        yield fail(
            f"the source model cannot be loaded: {reason_of(error)}",
            "point source_model at the directory that holds its saved_model.pb",
        )
        return
    for subject in subjects:
        try:
            run = subject.start()
        except Exception as error:  # format_scores has told of it
            message = f"{subject.name}: {reason_of(error)}"
            is_gate = model.contract.compares
            yield _not_compared(message) if is_gate else note(f"not compared: {message}")
            continue
        pairs = [pair_up(name, s, signatures) for name, s in subject.signatures.items()]
        for pair in filter(None, pairs):
            yield from _compared(model, subject, pair, run, source)
        if not any(pairs):
            # A file that merely lies beside a SavedModel may be anything.
            message = f"{subject.name}: no signature of the source takes and returns the same"
            is_asked = model.contract.compares or model.contract.source_model is not None
            yield _not_compared(message, model.contract.compares) if is_asked else note(message)


def _not_compared(message: str, is_gate: bool = True) -> Finding:
    judge = fail if is_gate else warn
    return judge(f"not compared: {message}", _UNCOMPARED_REMEDY)


def _artifacts(model: ModelUnderTest) -> Iterator[_Subject]:
    for artifact, contents in model.readable_artifacts:
        if contents.start is not None:
            name = str(artifact.path)
            yield _Subject(name, contents.signatures, contents.quantised, contents.start)


def _run_of(model: ModelUnderTest) -> Run:
    loaded = model.loaded.signatures
    return lambda name, inputs: call(loaded[name], inputs)


def _precision(model: ModelUnderTest) -> str:
    """Returns the type of a SavedModel's quantised weights, "" for none."""
    ops = {node.op for node in model.nodes}
    is_quantised = any(op.startswith(("Quantize", "FakeQuant", "UniformQuantize")) for op in ops)
    constants = {node.proto.attr["dtype"].type for node in model.nodes if node.op == "Const"}
    import tensorflow as tf

    return "int8" if is_quantised or tf.int8.as_datatype_enum in constants else ""


def _compared(
    model: ModelUnderTest, subject: _Subject, pair: Pair, run: Run, source: Run
) -> Iterator[Finding]:
    feed = feed_for(model, subject.signatures[pair.name], model.eval_rows)
    if feed is None or (pair.inputs is None and not (feed.real and feed.records)):
        message = f"{subject.name}: no rows that it and the source take"
        yield _not_compared(message) if model.contract.compares else note(message)
        return
    try:
        outputs, expected, random, rows = _both(model, pair, feed, run, source)
    except Exception as error:
        yield _not_compared(f"{subject.name}: {reason_of(error)}", model.contract.compares)
        return
    contract, allowed = model.contract, tolerance(subject.quantised)
    atol = allowed if contract.parity_atol is None else contract.parity_atol
    rtol = allowed if contract.parity_rtol is None else contract.parity_rtol
    is_set = contract.parity_atol is not None or contract.parity_rtol is not None
    # Rows that the source transforms first are others, if they have the same names afterwards.
    is_certain = is_set or (pair.inputs is not None and not subject.quantised)
    measured: dict[str, Any] = {"rows": rows, "source": pair.source_name, "outputs": {}}
    for name, other in (pair.outputs or outputs_paired(outputs, expected)).items():
        found = deviation(outputs[name], expected[other], atol, rtol)
        told = measured["outputs"][name] = {"largest": float(f"{found.largest:.4g}")}
        same = ""
        if found.agreement is not None:
            told["agreement"] = round(found.agreement, 4)
            same = f", the same class in {found.agreement:.1%}"
        message = (
            f"{subject.name}, output {name!r}, {rows} rows of {feed.source}: differs from the "
            f"source by {found.largest:.3g} at most{same}"
        )
        is_noise = bool(subject.quantised) and not is_set and found.share <= _FEW
        if other in random:
            yield note(f"{subject.name}, output {name!r}: the source itself varies")
        elif found.told and not is_noise:
            remedy = _QUANTISED_REMEDY if subject.quantised else _PARITY_REMEDY
            message += f"; {found.told}, {found.share:.0%} are beyond {atol:g} + {rtol:g} of it"
            yield Finding(
                "fail" if is_certain else "warn", message, remedy, may_be_meant=not is_set
            )
        else:
            yield note(message)
    if not measured["outputs"]:
        message = f"{subject.name}: its outputs have other names than the source's"
        yield _not_compared(message, model.contract.compares)
    yield from _accuracy(model, subject, feed, rows, (outputs, expected), measured)
    model.facts.setdefault("parity", {})[subject.name] = measured


def _both(
    model: ModelUnderTest, pair: Pair, feed: Feed, run: Run, source: Run
) -> tuple[Outputs, Outputs, set[str], int]:
    """Returns what model and source return for rows, as many as there is time for.

    And the outputs of the source that are others at the second call, and how many rows it were.
    """
    size = _BATCH if feed.divisible else feed.rows
    started, rows = time.perf_counter(), 0
    parts: list[tuple[Outputs, Outputs]] = []
    random: set[str] = set()
    while rows < feed.rows:
        part = feed.part(range(rows, min(rows + size, feed.rows))) if feed.divisible else feed
        given: Mapping[str, Any]
        if pair.inputs is not None:
            given = {pair.inputs[name]: value for name, value in part.inputs.items()}
        else:
            (key,) = (model.source or model).signatures[pair.source_name].inputs
            given = {key: np.array(part.records, dtype=object)}
        parts.append((run(pair.name, part.inputs), source(pair.source_name, given)))
        if not rows:
            again = source(pair.source_name, given)
            random.update(key for key in again if difference(again[key], parts[0][1][key])[0])
        rows += part.rows
        if time.perf_counter() - started > model.contract.probe_s:
            break
    joined = [
        {key: np.concatenate([np.atleast_1d(each[key]) for each in side]) for key in side[0]}
        for side in zip(*parts, strict=True)
    ]
    return joined[0], joined[1], random, rows


def _accuracy(
    model: ModelUnderTest,
    subject: _Subject,
    feed: Feed,
    rows: int,
    outputs: tuple[Outputs, Outputs],
    measured: dict[str, Any],
) -> Iterator[Finding]:
    """Compares how many rows model and source classify rightly, where the label is known."""
    bound = model.contract.max_accuracy_drop
    keys = model.contract.label_keys or tuple(sorted(model.label_keys))
    is_real = feed.real and len(feed.records) >= rows
    labels = labels_of(feed.records[:rows], keys[0]) if keys and is_real else None
    found = None if labels is None else _accuracies(*outputs, labels)
    if found is None:
        if bound is not None:
            yield fail(
                f"{subject.name}: its accuracy cannot be compared with the source's",
                "max_accuracy_drop needs examples that its inputs can be read from, and label_keys "
                "with a number for each class",
            )
        return
    own, of_source = found
    measured["accuracy"], measured["source_accuracy"] = round(own, 4), round(of_source, 4)
    drop = of_source - own
    message = (
        f"{subject.name}: accuracy {own:.2%} on {rows} eval rows, its source's {of_source:.2%}"
    )
    if drop > (_MAX_DROP if bound is None else bound) + 1e-9:
        yield (warn if bound is None else fail)(message, _QUANTISED_REMEDY)
    else:
        yield note(message)


def _accuracies(
    outputs: Outputs, expected: Outputs, labels: np.ndarray
) -> tuple[float, float] | None:
    """Returns the accuracies of model and source by the output that is best at it in the source."""
    best: tuple[float, float] | None = None
    for name, other in outputs_paired(outputs, expected).items():
        own, of_source = accuracy(outputs[name], labels), accuracy(expected[other], labels)
        if own is not None and of_source is not None and (best is None or of_source > best[1]):
            best = own, of_source
    return best
