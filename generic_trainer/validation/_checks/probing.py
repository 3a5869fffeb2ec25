"""Rows that production sends and that the first eval examples do not show, as checks.

All of them together take the seconds of `ServingContract.probe_s`. A row that causes trouble is
kept as text: `generic-trainer validate MODEL --example FILE` replays it.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from generic_trainer._core.machine import MIB, free_memory_bytes, peak_memory_mb, resident_memory_mb
from generic_trainer._core.texts import reason_of
from generic_trainer.validation._check import Findings, Skip, check, fail, note, warn
from generic_trainer.validation._checks.neighbours import beside_others
from generic_trainer.validation._checks.predictions import (
    FILLING_REMEDY,
    MIXING_REMEDY,
    NAN_REMEDY,
    ROWS_REMEDY,
    first_difference,
)
from generic_trainer.validation._checks.scores import ALONE_REMEDY, SIZES_REMEDY
from generic_trainer.validation._evidence import RECORDS
from generic_trainer.validation._feeds import input_features, inputs_of, is_tiny
from generic_trainer.validation._lists import filled, parallel_lists, partitions
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._report import keep_example
from generic_trainer.validation._schema_rows import (
    ProbeRow,
    SchemaRows,
    features_in_use,
    is_optional,
    parsed,
    without,
)
from generic_trainer.validation._scoring import Outputs, Scores, not_finite
from generic_trainer.validation._troubles import Trouble, troubles

_SIZES = (1, 2, 33, 64, 65, 100, 1024, 4096)
_MAX_FEED_BYTES = 128 * MIB  # of a batch
_SMALL_BATCH = 100  # whose memory is not estimated before
_MAX_ALONE = 256  # features that are missing alone
_MAX_CELLS = 300_000  # looked at for empty ones, in half a second
_MAX_VOCABULARY_BYTES = 1 << 24
_MAX_WORD_BYTES = 200
_MAX_CAUSES = 3  # that are reported
_CONVOLUTIONS = {"Conv2D", "Conv3D", "DepthwiseConv2dNative"}
_REPLAY = "generic-trainer validate MODEL_DIR --example FILE replays it"


@check(after="memory", needs="scores")
def eval_rows(model: ModelUnderTest) -> Findings:
    """A thousand eval examples are scored, in batches of up to 256, and alike in small ones.

    The first examples seldom have the rare word, the longest list or the missing value. A thousand,
    from all over the files' first 256 MiB, are closer to the requests of production. Each must have
    the same outputs beside other rows.

    Example: an example whose list of 40 words does not fit a reshape.
    """
    examples = parsed(model.evidence.eval_rows[RECORDS:])
    rows = [
        ProbeRow(example, f"example {n} of the sample")
        for n, example in enumerate(examples, RECORDS)
    ]
    probed = [(n, s) for n, s in _probed(model) if s.feed.real] if rows else []
    if not probed:
        raise Skip(f"needs more than {RECORDS} examples that fit a signature, and probe_s")
    tested = False
    for name, scored in probed:
        with model.budget.part(0.5):
            yield from _findings(
                model, name, scored.batch, rows, "every consumer will see this", _fatal(model)
            )
            if model.budget.rows:
                yield note(f"signature {name!r} scored {model.budget.rows + RECORDS} examples")
                tested = True
            yield from beside_others(model, name, scored, rows, MIXING_REMEDY)
    if not tested:
        raise Skip("nothing to test: probe_s is used up")


@check(after="beats_constant", needs="scores", decided_by="rows")
def without_optional(model: ModelUnderTest) -> Findings:
    """Examples score without features that are optional in schema or statistics, or that some lack.

    An optional feature will be missing one day. Each is left out alone, and all of them together.
    An example that lacks a feature is also called alone: in a batch, other rows may make up for it.
    It must have the same outputs there.

    Example: `FixedLenFeature([], tf.float32)` without a default, for a feature with `presence {
    min_fraction: 0.9 }`.
    """
    optional = {name for name, seen in model.evidence.observed.items() if seen.is_missing}
    if model.evidence.schema is not None:
        optional = {f.name for f in features_in_use(model.evidence.schema) if is_optional(f)}
    optional -= model.evidence.label_keys
    tested = False
    for name, scored in model.fresh(model.scored(served=True)):
        if scored.feed.serialized and scored.feed.divisible:
            # It takes one call where all is well, and is worth that whatever is left.
            with model.at_least(1.0) as budget:
                yield from _without(model, name, scored, optional)
                tested = tested or budget.rows > 0
    if not tested:
        raise Skip("nothing to test: no feature that a scored signature parses is optional")


def _without(
    model: ModelUnderTest, name: str, scored: Scores, optional: Collection[str]
) -> Findings:
    """Yields findings of rows that lack features, those of one batch first."""
    examples = parsed(scored.feed.records)
    base, usual = _base(scored)
    features = model.signatures[name].features
    keys = sorted(features.keys() & optional)[:_MAX_ALONE]
    together = parallel_lists(base, keys, {}, partitions(examples, features, model.evidence.schema))
    left_out = [group for key, group in together.items() if key == group[0]]
    alone = [ProbeRow(without(base, group), f"without {group}") for group in left_out]
    others = [
        ProbeRow(without(example, optional), f"without {sorted(optional)}") for example in examples
    ]
    remedy = (
        "parse it as VarLenFeature or with a default_value that scores; "
        "if it is always there, set presence.min_fraction: 1 in the schema"
    )
    fatal = ("error",) if model.contract.matches_rows is False else ("error", "NaN")
    rows = [*alone, *others] if keys else []
    findings = list(_findings(model, name, usual, rows, remedy, fatal))
    yield from findings
    lacking: list[ProbeRow] = []
    if scored.feed.real:
        wanted = features.keys() - model.evidence.label_keys
        rows_of_cells = max(RECORDS, _MAX_CELLS // max(len(wanted), 1))
        lacking += _lacking(parsed(model.evidence.eval_rows[:rows_of_cells]), wanted)
        for row in lacking:
            yield from _findings(model, name, usual, [row], ALONE_REMEDY, _fatal(model))
    for row in () if findings else alone:
        row = row._replace(what=f"{row.what}, alone")
        yield from _findings(model, name, usual, [row], f"{ALONE_REMEDY}; {remedy}", ())
    yield from beside_others(model, name, scored, [*lacking, *alone], FILLING_REMEDY, size=1)


def _lacking(examples: Sequence[Any], features: AbstractSet[str]) -> Iterator[ProbeRow]:
    """Yields examples that lack features, for each feature the one that lacks the fewest."""
    lacked = [features - filled(example, features) for example in examples]
    rows: dict[str, int] = {}
    for row in sorted(range(len(examples)), key=lambda row: len(lacked[row])):
        for name in lacked[row] - rows.keys():
            rows[name] = row
    for row in sorted(set(rows.values()))[:_MAX_ALONE]:
        what = f"example {row} of the sample, alone, which lacks {sorted(lacked[row])}"
        yield ProbeRow(examples[row], what)


@check(needs="scores")
def schema_rows(model: ModelUnderTest) -> Findings:
    """Rows at the limits of the schema are scored, and give numbers.

    Production may send all rows that the schema allows: every word of a domain, the ends of a
    range, lists of each length, rows without an optional feature. Each such row is made from an
    example that scores, and must have the same outputs beside other rows.

    Example: `log(x)` of an `x` whose domain begins at 0.
    """
    if model.evidence.schema is None:
        raise Skip("the contract names no schema")
    remedy = (
        "the schema allows this row, so that production may send it: let the model take it, "
        "or narrow the schema"
    )
    yield from _of_made_up(model, SchemaRows.allowed, remedy)


@check(after="batch_sizes", needs="scores", is_advisory=True)
def unforeseen_rows(model: ModelUnderTest) -> Findings:
    """Rows beyond the domains of the schema give numbers, and an empty batch gives no error.

    Clients send more than a schema foresees: values beyond a domain, unknown words, broken text, an
    empty batch. A model need not take them, so this check warns at most.

    Example: an unknown word whose index is beyond the embedding.
    """
    for name, scored in model.served_scores.items():
        if scored.feed.divisible and model.budget.allows(1):
            try:
                model.budget.call(model.loaded.signatures[name], scored.feed.take([]), 0)
            except Exception as error:
                if _CONVOLUTIONS & model.signatures[name].ops and _convolves_no_empty_batch():
                    yield note(
                        f"signature {name!r} was not tested with an empty batch: TensorFlow's "
                        "convolutions fail with one on this processor; with "
                        "TF_ENABLE_ONEDNN_OPTS=0 they take it"
                    )
                    continue
                yield warn(
                    f"signature {name!r} with an empty batch: {reason_of(error)}",
                    "replace fixed sizes by ones that follow the batch, and -1 in a reshape by "
                    "a known size",
                )
            else:
                yield note(f"signature {name!r} took an empty batch")
    if model.evidence.schema is None:
        raise Skip("the contract names no schema")
    remedy = (
        "a request with this row fails, and a batch with it as a whole: let the model take "
        "it, or declare a domain in the schema that ExampleValidator enforces"
    )
    yield from _of_made_up(model, SchemaRows.unforeseen, remedy, is_certain=False)


@functools.cache
def _convolves_no_empty_batch() -> bool:
    """Whether TensorFlow's convolutions give an empty batch a wrong shape, which no model can help.

    Those of oneDNN return the shape of their input.
    """
    import tensorflow as tf

    found = tf.nn.conv2d(tf.zeros([0, 2, 2, 1]), tf.zeros([2, 2, 1, 3]), 1, "VALID")
    return bool(found.shape != [0, 1, 1, 3])


@check(after="schema_rows", needs="scores")
def observed_rows(model: ModelUnderTest) -> Findings:
    """Rows with values from the statistics, of features without a domain, give numbers.

    Inferred schemas declare no domain for most numbers. Values that have occurred will occur again:
    the extremes and quantiles, the frequent words, the longest list.

    Example: `exp(x)` that overflows at the largest fare, which is in no row of the eval split.
    """
    if not model.evidence.observed:
        if model.contract.statistics is not None and model.evidence.transformed_dtypes:
            raise Skip(
                "by names and types the statistics may be of Transform's output: if they are of "
                "raw examples, a contract without transform_graph has them tested"
            )
        raise Skip("the contract names no statistics of raw examples")
    # In a row with lists one value may be the length of another, and cannot be changed alone.
    is_certain = not any(seen.lengths[1] > 1 for seen in model.evidence.observed.values())
    remedy = (
        "examples beyond the first ones have this value: let the model take it, or keep it "
        "out of the data by a domain in the schema"
    )
    yield from _of_made_up(model, SchemaRows.in_statistics, remedy, is_certain=is_certain)


@check(needs="scores", decided_by="rows")
def batch_sizes(model: ModelUnderTest) -> Findings:
    """Batches of 1 to 4,096 rows are scored, as far as there is time, and each row as ever.

    Traffic determines the batch sizes of servers, and Beam's workers those of BulkInferrer. Rare
    sizes, such as 1 and 4,096, occur too.

    Example: an attention mask that is traced for 64 rows; memory that grows with the square of the
    batch.
    """
    probed = [(n, s) for n, s in model.fresh(model.served_scores) if s.feed.divisible]
    if not probed or not model.budget.allows(1):
        raise Skip("no signature with a free batch was called, or probe_s is used up")
    tested = False
    for name, scored in probed:
        done: list[str] = []
        mb_per_row = 0.0
        with model.budget.part(0.5):
            for size in _SIZES:
                too_large = size > _SMALL_BATCH and (
                    size * scored.feed.bytes_per_row > _MAX_FEED_BYTES
                    or size * mb_per_row > free_memory_bytes() / MIB / 2
                )
                if too_large or not model.budget.allows(size):
                    break
                before_mb = resident_memory_mb() or 0.0
                findings = list(_of_size(model, name, scored, size))
                # Of the whole process so far: rather too much than too little.
                mb_per_row = ((peak_memory_mb() or 0.0) - before_mb) / size
                done.append(str(size))
                if findings:
                    yield from findings
                    break
        if done:
            yield note(f"signature {name!r} scored batches of {', '.join(done)}")
            tested = True
    if not tested:
        raise Skip("nothing to test: the rows are too large, or probe_s is used up")


def _of_size(model: ModelUnderTest, name: str, scored: Scores, size: int) -> Findings:
    import tensorflow as tf

    rows = np.arange(size) % scored.feed.rows
    subject = f"signature {name!r} with {size} rows"
    try:
        outputs = model.budget.call(model.loaded.signatures[name], scored.feed.take(rows), size)
    except (MemoryError, tf.errors.ResourceExhaustedError) as error:
        yield note(f"{subject}: {reason_of(error)}")
        return
    except Exception as error:
        yield model.of_rows(
            True, f"{subject}: {reason_of(error)}; {scored.feed.rows} rows are scored", SIZES_REMEDY
        )
        return
    for key, output in sorted(outputs.items()):
        usual = scored.batch[key]
        if not scored.has_rows(key) or first_difference(scored, key)[1]:
            continue  # other checks report it
        if output.shape[:1] != (size,):
            yield model.per_row(
                f"{subject}: output {key!r} is of shape {list(output.shape)}", ROWS_REMEDY
            )
            continue
        changed, certain = scored.differs(key, output, usual[rows])
        if changed and certain and not scored.varies(key)[0]:
            message = f"{subject}: output {key!r} is {changed} in a batch of {scored.feed.rows}"
            remedy = "a prediction must not depend on the number of rows in its batch"
            yield model.of_rows(not is_tiny(scored.feed), message, f"{remedy}: {MIXING_REMEDY}")


def _of_made_up(
    model: ModelUnderTest,
    made_up: Callable[[SchemaRows], Iterable[ProbeRow]],
    remedy: str,
    is_certain: bool = True,
) -> Findings:
    from tensorflow_metadata.proto.v0 import schema_pb2

    probed = _probed(model)
    if not probed:
        raise Skip("no signature takes the features of examples, or probe_s is used up")
    called = 0
    for name, scored in probed:
        signature = model.signatures[name]
        serialized = scored.feed.serialized
        features = signature.features if serialized else input_features(model, signature)
        base, usual = _base(scored)
        schema = schema_pb2.Schema() if model.evidence.schema is None else model.evidence.schema
        words = _last_words(model)
        examples = parsed(scored.feed.records)
        rows_of = SchemaRows(
            schema,
            features,
            base,
            model.evidence.label_keys,
            words,
            model.evidence.observed,
            partitions(examples, features, schema),
        )
        # Made-up examples do not show which lists belong together.
        is_nested = (
            sum(feature.is_ragged for feature in features.values()) > 1 and not scored.feed.real
        )
        fatal = _fatal(model) if is_certain and not is_nested else ()
        with model.budget.part(0.5):
            rows = model.budget.made(made_up(rows_of))
            for batch in (rows, *([row] for row in rows if row.alone)):
                yield from _findings(model, name, usual, batch, remedy, fatal)
            if model.budget.rows:
                called += model.budget.rows
                yield note(f"signature {name!r} scored {model.budget.rows} rows")
            yield from beside_others(model, name, scored, rows, MIXING_REMEDY, certain=bool(fatal))
    if not called:
        raise Skip("nothing to test: schema and statistics state no other rows")


def _last_words(model: ModelUnderTest) -> list[bytes]:
    """Returns the last line of each asset that looks like a vocabulary: the highest id has it."""
    words = []
    for file in model.asset_files.values():
        if file.is_file() and 0 < file.stat().st_size <= _MAX_VOCABULARY_BYTES:
            lines = file.read_bytes().splitlines()
            words += [line for line in lines[-1:] if 0 < len(line) <= _MAX_WORD_BYTES]
    return words


def _findings(
    model: ModelUnderTest,
    name: str,
    usual: Outputs,
    rows: Sequence[ProbeRow],
    remedy: str,
    fatal: Collection[str],
) -> Findings:
    """Yields a finding for each cause of trouble, with an example that shows it.

    Troubles of the kinds in `fatal` are failures, others warnings.
    """
    to_inputs = functools.partial(inputs_of, model.signatures[name], model.scores[name].feed)
    signature = model.loaded.signatures[name]
    examples = [row.example for row in rows]
    causes: list[Trouble] = []
    for trouble in troubles(signature, to_inputs, examples, model.budget, usual):
        if len(causes) < _MAX_CAUSES and not any(map(trouble.resembles, causes)):
            causes.append(trouble)
            row = rows[trouble.index]
            shown = keep_example(model.facts, row.example)
            is_error = trouble.kind == "error"
            does = "raises" if is_error else f"gives {trouble.kind} in"
            message = f"signature {name!r}, {row.what}: {does} {trouble.reason}; {shown}"
            judge = fail if trouble.kind in fatal else warn
            advice = f"{remedy}; {_REPLAY}" if is_error else f"{NAN_REMEDY}; {remedy}; {_REPLAY}"
            yield judge(message, advice, may_be_meant=True)


def _fatal(model: ModelUnderTest) -> tuple[str, ...]:
    """Returns the kinds of trouble that are failures if rows are certain to come."""
    return ("error", "NaN") if model.contract.matches_rows else ("error",)


def _probed(model: ModelUnderTest) -> list[tuple[str, Scores]]:
    """Returns the signatures whose rows are examples, of which any number can be called."""
    if not model.budget.allows(1):
        return []
    served = model.fresh(model.served_scores)
    return [(n, scored) for n, scored in served if scored.feed.records and scored.feed.divisible]


def _base(scored: Scores) -> tuple[Any, Outputs]:
    """Returns the example without trouble that has the most features, and its outputs."""
    examples = parsed(scored.feed.records)
    rows = range(len(examples))
    per_row = {k: v for k, v in scored.batch.items() if v.shape[:1] == (len(examples),)}
    bad = {
        row
        for _, _, where in not_finite(per_row)
        for row in np.flatnonzero(where.reshape(len(examples), -1).any(axis=1))
    }
    well = [row for row in rows if row not in bad] or rows
    # Lists that belong together are known by their lengths, the longer the better.
    sizes = [(len(example.features.feature), example.ByteSize()) for example in examples]
    index = max(well, key=lambda row: sizes[row])
    return examples[index], {**scored.batch, **{k: v[[index]] for k, v in per_row.items()}}
