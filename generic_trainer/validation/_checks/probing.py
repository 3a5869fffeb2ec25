"""Rows that production sends and that the first eval examples do not show, as checks.

All of them together take the seconds of `ServingContract.probe_s`. What a row troubles is shrunk to
the smallest example that does it, which is kept as text: `generic-trainer validate MODEL --example
FILE` replays it.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from generic_trainer._core.machine import (
    MIB,
    free_memory_bytes,
    peak_memory_mb,
    resident_memory_mb,
)
from generic_trainer._core.texts import reason_of
from generic_trainer.validation._check import (
    Finding,
    check,
    fail,
    note,
    of_rows,
    per_row,
    skip,
    warn,
)
from generic_trainer.validation._checks.predictions import first_difference
from generic_trainer.validation._feeds import input_features, inputs_of
from generic_trainer.validation._model import RECORDS, ModelUnderTest
from generic_trainer.validation._probing import Budget, Probe, Trouble, not_finite
from generic_trainer.validation._schema_rows import (
    ProbeRow,
    SchemaRows,
    features_in_use,
    is_optional,
    without,
)
from generic_trainer.validation._scoring import Outputs, Scores, difference
from generic_trainer.validation._signatures import parsed_features

_SIZES = (1, 2, 33, 64, 65, 100, 1024, 4096)
_FIRST_BATCH, _LARGEST_BATCH = 64, 256  # of eval examples
_MAX_FEED_BYTES = 128 * MIB  # of a batch
_SMALL_BATCH = 100  # whose memory nobody has to foresee
_MAX_TROUBLES = 200  # of one signature that are looked for
_MAX_ALONE = 256  # features that are missing alone
_MAX_VOCABULARY_BYTES = 1 << 24
_MAX_WORD_BYTES = 200
_MAX_CAUSES = 3  # of them that are told
_SHOWN_CHARACTERS = 600
_NAN_REMEDY = (
    "look for a division by zero, the log of zero, or missing values that became NaN; the "
    "Evaluator turns NaN into silent nonsense"
)

_REPLAY = "generic-trainer validate MODEL_DIR --example FILE replays it"

Judge = Callable[[ModelUnderTest, Trouble, str], Finding]


@check("eval_rows", needs=("scores",))
def eval_rows(model: ModelUnderTest) -> Iterator[Finding]:
    """The first 1,000 eval examples are scored, in batches of more than 64 too.

    The first examples seldom have the rare word, the longest list or the missing value. A thousand
    show more of what production sends, in batches that grow beyond the first.

    Example: an example whose list of 40 words does not fit a reshape.
    """
    examples = _parsed(model.eval_rows[RECORDS:])
    rows = [ProbeRow(each, f"example {RECORDS + n}") for n, each in enumerate(examples)]
    probed = [(n, s) for n, s in _probed(model) if s.feed.real] if rows else []
    if not probed:
        yield skip(f"needs more than {RECORDS} examples that fit a signature, and probe_s")
    for name, scored in probed:
        with model.budget.part(0.5) as budget:
            start, size = 0, _FIRST_BATCH
            findings: list[Finding] = []
            while start < len(rows) and budget.allows(1) and not findings:
                batch = rows[start : start + size]
                findings = list(_findings(model, name, scored.batch, budget, batch, _of_real))
                start, size = start + size, min(2 * size, _LARGEST_BATCH)
        yield from findings
        yield note(f"signature {name!r} scored {budget.rows + RECORDS} examples")


@check("without_optional", needs=("scores",))
def without_optional(model: ModelUnderTest) -> Iterator[Finding]:
    """Examples without the features that schema or statistics call optional still score.

    They say what may be missing, and one day it is. Each optional feature is left out alone,
    and all of them together.

    Example: `FixedLenFeature([], tf.float32)` without a default, for a feature with `presence {
    min_fraction: 0.9 }`.
    """
    if model.schema is None:
        optional = {name for name, seen in model.observed.items() if seen.is_missing}
    else:
        optional = {f.name for f in features_in_use(model.schema) if is_optional(f)}
    optional -= model.label_keys
    if not optional:
        yield skip("no schema and no statistics, or all of their features are required")
        return
    for name, scored in model.served_scores.items():
        if scored.feed.serialized and scored.feed.divisible:
            examples, (base, usual) = _parsed(scored.feed.records), _base(scored)
            parsed = parsed_features(model.meta_graph.graph_def, model.signatures[name])
            alone = sorted(optional & parsed.keys())[:_MAX_ALONE]
            absent = [(base, [key]) for key in alone]
            absent += [(example, sorted(optional)) for example in examples]
            rows = [ProbeRow(without(each, keys), f"without {keys}") for each, keys in absent]
            # It takes one call where all is well, and is worth that whatever is left.
            budget = Budget(max(model.budget.left_s, 1.0))
            yield from _findings(model, name, usual, budget, rows, _of_optional)
            model.budget.left_s = min(model.budget.left_s, budget.left_s)


@check("schema_rows", needs=("scores",))
def schema_rows(model: ModelUnderTest) -> Iterator[Finding]:
    """Rows at the limits of what the schema allows are scored, and give numbers.

    What the schema allows may come: every word of a domain, the ends of a range, lists of each
    length, an optional feature that is missing. The model is called with such rows, and what fails
    is shrunk to the smallest example.

    Example: `log(x)` where the domain of `x` begins at 0.
    """
    if model.schema is None:
        yield skip("the contract names no schema")
        return
    yield from _of_made_up(model, SchemaRows.allowed, _of_allowed)


@check("unforeseen_rows", needs=("scores",), is_advisory=True)
def unforeseen_rows(model: ModelUnderTest) -> Iterator[Finding]:
    """Rows beyond what the schema declares are scored and give numbers, and no rows no error.

    Clients send what no schema has foreseen: values beyond a domain, words nobody knows, broken
    text, an empty batch. Nobody has promised to take them, so this warns at most.

    Example: an unknown word whose index lies beyond the embedding.
    """
    for name, scored in model.served_scores.items():
        if scored.feed.divisible and model.budget.allows(1):
            try:
                model.budget.call(model.loaded.signatures[name], scored.feed.take([]), 0)
            except Exception as error:
                yield warn(
                    f"signature {name!r} with an empty batch: {reason_of(error)}",
                    "who sends one gets this error: replace fixed sizes by ones that follow the "
                    "batch, and -1 in a reshape by what can be known",
                )
    if model.schema is None:
        yield skip("the contract names no schema")
        return
    yield from _of_made_up(model, SchemaRows.unforeseen, _of_unforeseen)


@check("observed_rows", needs=("scores",))
def observed_rows(model: ModelUnderTest) -> Iterator[Finding]:
    """Rows with what the statistics have seen, where no domain is declared, give numbers.

    Schemas that are inferred declare no domain of most numbers. What the data has seen of them
    comes again: the extremes and quantiles, the frequent words, the longest list.

    Example: `exp(x)` that overflows at the largest fare, which is in no row of the eval split.
    """
    if not model.observed:
        yield skip("the contract names no statistics of raw examples")
        return
    yield from _of_made_up(model, SchemaRows.in_statistics, _of_observed)


@check("batch_sizes", needs=("scores",))
def batch_sizes(model: ModelUnderTest) -> Iterator[Finding]:
    """Batches of 1 to 4,096 rows are scored, as far as there is time, and each row as ever.

    Servers batch as traffic comes, and BulkInferrer as its workers like it. Some sizes are rare,
    and 1 and 4,096 are both among them.

    Example: an attention mask that is traced for 64 rows; memory that grows with the square of the
    batch.
    """
    probed = [(n, s) for n, s in model.served_scores.items() if s.feed.divisible]
    if not probed or not model.budget.allows(1):
        yield skip("no signature with a free batch was called, or probe_s is used up")
    for name, scored in probed:
        done: list[str] = []
        mb_per_row = 0.0
        with model.budget.part(0.5) as budget:
            for size in _SIZES:
                too_large = size > _SMALL_BATCH and (
                    size * scored.feed.bytes_per_row > _MAX_FEED_BYTES
                    or size * mb_per_row > free_memory_bytes() / MIB / 2
                )
                if too_large or not budget.allows(size):
                    break
                before_mb = resident_memory_mb() or 0.0
                findings = list(_of_size(model, name, scored, budget, size))
                # Of the whole process so far: rather too much than too little.
                mb_per_row = ((peak_memory_mb() or 0.0) - before_mb) / size
                done.append(str(size))
                if findings:
                    yield from findings
                    break
        if done:
            yield note(f"signature {name!r} scored batches of {', '.join(done)}")


def _of_size(
    model: ModelUnderTest, name: str, scored: Scores, budget: Budget, size: int
) -> Iterator[Finding]:
    import tensorflow as tf

    rows = np.arange(size) % scored.feed.rows
    subject = f"signature {name!r} with {size} rows"
    try:
        outputs = budget.call(model.loaded.signatures[name], scored.feed.take(rows), size)
    except (MemoryError, tf.errors.ResourceExhaustedError) as error:
        yield note(f"{subject}: {reason_of(error)}")
        return
    except Exception as error:
        yield of_rows(
            model,
            True,
            f"{subject}: {reason_of(error)}; {scored.feed.rows} rows are scored",
            "replace fixed sizes by ones that follow the batch: consumers choose them",
        )
        return
    for key, output in sorted(outputs.items()):
        usual = scored.batch[key]
        if usual.shape[:1] != (scored.feed.rows,) or first_difference(scored, key)[0]:
            continue  # other checks say so
        if output.shape[:1] != (size,):
            yield per_row(
                model,
                f"{subject}: output {key!r} is of shape {list(output.shape)}",
                "return one row per example, whatever the batch",
            )
            continue
        changed, certain = difference(output, usual[rows])
        if changed and certain and not scored.varies(key)[0]:
            yield of_rows(
                model,
                True,
                f"{subject}: output {key!r} is {changed} in a batch of {scored.feed.rows}",
                "a prediction must not depend on the size of its batch",
            )


def _of_made_up(
    model: ModelUnderTest, made_up: Callable[[SchemaRows], Iterable[ProbeRow]], judge: Judge
) -> Iterator[Finding]:
    from tensorflow_metadata.proto.v0 import schema_pb2

    probed = _probed(model)
    if not probed:
        yield skip("no signature takes the features of examples, or probe_s is used up")
    for name, scored in probed:
        signature = model.signatures[name]
        features = (
            parsed_features(model.meta_graph.graph_def, signature)
            if scored.feed.serialized
            else input_features(model, signature)
        )
        base, usual = _base(scored)
        schema = schema_pb2.Schema() if model.schema is None else model.schema
        words = _last_words(model)
        rows_of = SchemaRows(schema, features, base, model.label_keys, words, model.observed)
        with model.budget.part(0.5) as budget:
            rows = list(_made_in_time(made_up(rows_of), budget))
            yield from _findings(model, name, usual, budget, rows, judge)
            for row in rows:
                if row.alone and budget.allows(1):
                    yield from _findings(model, name, usual, budget, [row], judge)
        yield note(f"signature {name!r} scored {budget.rows} rows")


def _last_words(model: ModelUnderTest) -> list[bytes]:
    """Returns the last line of each asset that looks like a vocabulary: the highest id has it."""
    words = []
    for asset in model.assets:
        file = model.directory / "assets" / asset.filename
        if file.is_file() and 0 < file.stat().st_size <= _MAX_VOCABULARY_BYTES:
            lines = file.read_bytes().splitlines()
            words += [line for line in lines[-1:] if 0 < len(line) <= _MAX_WORD_BYTES]
    return words


def _made_in_time(rows: Iterable[ProbeRow], budget: Budget) -> Iterator[ProbeRow]:
    """Yields rows until they have taken half of a budget: a schema can have 10,000 features."""
    end_s = budget.left_s / 2
    with budget.charged():
        started = time.perf_counter()
        for row in rows:
            yield row
            if time.perf_counter() - started > end_s:
                return


def _findings(
    model: ModelUnderTest,
    name: str,
    usual: Outputs,
    budget: Budget,
    rows: Sequence[ProbeRow],
    judge: Judge,
) -> Iterator[Finding]:
    """Yields a finding for each cause of trouble, with the smallest example that shows it."""
    from google.protobuf import text_format

    to_inputs = functools.partial(inputs_of, model.signatures[name], model.scores[name].feed)
    probe = Probe(model.loaded.signatures[name], to_inputs, budget, usual)
    causes: list[Trouble] = []
    troubles = probe.troubles([row.example for row in rows])
    for trouble in itertools.islice(troubles, _MAX_TROUBLES):
        if len(causes) < _MAX_CAUSES and not any(map(trouble.resembles, causes)):
            causes.append(trouble)
            row = rows[trouble.index]
            smallest = probe.shrink(row.example, trouble)
            text = text_format.MessageToString(smallest, as_one_line=True)
            kept = model.facts.setdefault("failing_examples", {})
            file = f"example-{len(kept) + 1}.pbtxt"
            kept[file] = text
            shown = text[:_SHOWN_CHARACTERS] + "..." * (len(text) > _SHOWN_CHARACTERS)
            does = "raises" if trouble.kind == "error" else f"gives {trouble.kind} in"
            yield judge(
                model,
                trouble,
                f"signature {name!r}, {row.what}: {does} {trouble.reason}; smallest example, "
                f"{file}: {shown}",
            )


def _of_real(model: ModelUnderTest, trouble: Trouble, message: str) -> Finding:
    if trouble.kind == "error":
        return fail(message, f"every consumer will see this error; {_REPLAY}")
    return of_rows(model, trouble.kind == "NaN", message, f"{_NAN_REMEDY}; {_REPLAY}")


def _of_optional(model: ModelUnderTest, trouble: Trouble, message: str) -> Finding:
    remedy = (
        "parse it as VarLenFeature or give FixedLenFeature a default_value that scores; if it is "
        f"always there, set presence.min_fraction: 1 in the schema; {_REPLAY}"
    )
    is_wrong = trouble.kind == "NaN" and model.contract.matches_rows is not False
    if trouble.kind == "error" or is_wrong:
        allows = "the statistics show" if model.schema is None else "the schema allows"
        message = f"{message}, which {allows}"
        return Finding("fail", message, remedy, may_be_meant=True)
    return warn(message, remedy)


def _of_allowed(model: ModelUnderTest, trouble: Trouble, message: str) -> Finding:
    remedy = (
        "the schema allows this row, so that production may send it: let the model take it, or "
        f"narrow the schema; {_REPLAY}"
    )
    if trouble.kind == "error":
        return Finding("fail", message, remedy, may_be_meant=True)
    return of_rows(model, trouble.kind == "NaN", message, f"{_NAN_REMEDY}; {remedy}")


def _of_observed(model: ModelUnderTest, trouble: Trouble, message: str) -> Finding:
    remedy = (
        "examples have this value, though not the first that were scored: let the model take it, "
        f"or keep it out of the data by a domain in the schema; {_REPLAY}"
    )
    # In a row with lists one value may be the length of another, and cannot be changed alone.
    is_certain = not any(seen.lengths[1] > 1 for seen in model.observed.values())
    if trouble.kind == "error":
        return Finding("fail" if is_certain else "warn", message, remedy, may_be_meant=True)
    is_certain = is_certain and trouble.kind == "NaN"
    return of_rows(model, is_certain, message, f"{_NAN_REMEDY}; {remedy}")


def _of_unforeseen(model: ModelUnderTest, trouble: Trouble, message: str) -> Finding:
    remedy = (
        "a request with this row would fail, and a batch with it as a whole: let the model take "
        f"it, or declare a domain in the schema and have ExampleValidator enforce it; {_REPLAY}"
    )
    return Finding("warn", message, remedy, may_be_meant=True)


def _probed(model: ModelUnderTest) -> list[tuple[str, Scores]]:
    """Returns the signatures whose rows are examples, of which any number can be called."""
    if not model.budget.allows(1):
        return []
    return [
        (name, scored)
        for name, scored in model.served_scores.items()
        if scored.feed.records and scored.feed.divisible
    ]


def _parsed(records: Iterable[bytes]) -> list[Any]:
    import tensorflow as tf

    return [tf.train.Example.FromString(record) for record in records]


def _base(scored: Scores) -> tuple[Any, Outputs]:
    """Returns an example that is well, the one with most features, and what it gives."""
    examples = _parsed(scored.feed.records)
    rows = range(len(examples))
    per_row = {k: v for k, v in scored.batch.items() if v.shape[:1] == (len(examples),)}
    bad = {
        row
        for _, _, where in not_finite(per_row)
        for row in np.flatnonzero(where.reshape(len(examples), -1).any(axis=1))
    }
    well = [row for row in rows if row not in bad] or rows
    index = max(well, key=lambda row: len(examples[row].features.feature))
    return examples[index], {**scored.batch, **{k: v[[index]] for k, v in per_row.items()}}
