"""Checks of what the signatures return for examples."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from generic_trainer._core.texts import reason_of
from generic_trainer.validation._check import (
    Finding,
    check,
    fail,
    note,
    of_rows,
    per_row,
    warn,
)
from generic_trainer.validation._feeds import feed_for
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._scoring import (
    ODD_ROWS,
    Feed,
    Scores,
    call,
    difference,
    is_float,
    score,
)
from generic_trainer.validation._signatures import assigns, nodes_of

_PREPROCESSING = "transform_"  # TFX's names: transform_features, transform_labels


@check("scores", needs=("loads", "devices", "signatures_exist", "inputs_read"))
def scores(model: ModelUnderTest) -> Iterator[Finding]:
    """Every signature scores a batch, an odd remainder of one, and single rows.

    The rows are the contract's examples where they fit the signature. Made-up rows stand in
    elsewhere; what they cannot be scored with is a warning, as the model may rightly refuse them.

    Example: a reshape to `[32, 10]`, which the last batch of 7 rows does not fit.
    """
    import tensorflow as tf

    for name, feed in feeds_of(model):
        if isinstance(feed, str):
            yield note(f"signature {name!r} {feed}: not called")
            continue
        loaded = model.loaded.signatures[name]
        try:
            model.scores[name] = score(loaded, feed)
            yield note(f"signature {name!r} scored {feed.rows} rows of {feed.source}")
        except Exception as error:
            message = f"signature {name!r} with {feed.source}: {reason_of(error)}"
            if isinstance(error, (MemoryError, tf.errors.ResourceExhaustedError)):
                yield fail(message, "reduce what the signature allocates for one batch")
                continue
            served = name in model.serving_signatures
            if served and feed.divisible and _scores_whole(loaded, feed):
                yield of_rows(
                    model,
                    True,
                    f"{message}; a batch of {feed.rows} is scored, and smaller ones are not",
                    "replace fixed sizes by ones that follow the batch: consumers choose them, "
                    "and a last batch is smaller",
                )
                continue
            alone = _scored_alone(loaded, feed) if served and feed.divisible else []
            if alone and len(alone) < feed.rows and not feed.real:
                model.scores[name] = score(loaded, feed.part(alone))
                yield note(f"signature {name!r} scored {len(alone)} rows of {feed.source}")
            yield _judge_error(served, len(alone) == feed.rows, feed, message)


def feeds_of(model: ModelUnderTest) -> Iterator[tuple[str, Feed | str]]:
    """Yields each signature with the rows that it is called with, or with why it is not."""
    for name, signature in model.signatures.items():
        if name not in model.serving_signatures and assigns(model.meta_graph.graph_def, signature):
            yield name, "changes the model's variables"
        else:
            yield name, feed_for(model, signature) or "takes no dense tensors"


def _judge_error(served: bool, works_alone: bool, feed: Feed, message: str) -> Finding:
    if works_alone:
        return fail(
            f"{message}; single rows are scored",
            "the function is made for one row: replace fixed sizes (reshape to [1, ...], x[0]) by "
            "ones that follow the batch. The Evaluator would silently fall back to row by row",
        )
    if not feed.real:
        return warn(
            message,
            "these rows were made up from the graph; pass real ones with "
            "ServingContract(examples=...) to know whether the model is at fault",
        )
    return (fail if served else warn)(
        message,
        "every consumer will see this error: make the signature parse what the examples hold "
        "(names, dtypes, optional features with a default_value), with any number of rows",
    )


def _scores_whole(loaded: Any, feed: Feed) -> bool:
    with contextlib.suppress(Exception):
        call(loaded, feed.inputs)
        return True
    return False


def _scored_alone(loaded: Any, feed: Feed) -> list[int]:
    """Returns the rows that can be scored alone, none where the first ones cannot."""
    scored = []
    for row in range(feed.rows):
        with contextlib.suppress(Exception):
            call(loaded, feed.take([row]))
            scored.append(row)
        if row == ODD_ROWS and not scored:
            break
    return scored


@check("output_per_row", needs=("scores",))
def output_per_row(model: ModelUnderTest) -> Iterator[Finding]:
    """The first dimension of every output is the number of rows.

    What shapes say may be wrong, or nothing. Here the rows that come back are counted.

    Example: 8 examples give an output of shape `[16, 3]`.
    """
    for name, scored in model.served_scores.items():
        for key, output in sorted(scored.batch.items()):
            if output.shape[:1] != (scored.feed.rows,):
                yield per_row(
                    model,
                    f"signature {name!r}: {scored.feed.rows} rows give output {key!r} of shape "
                    f"{list(output.shape)}",
                    "return one row per example; BulkInferrer and Evaluator split outputs by row",
                )


@check("outputs_finite", needs=("scores",))
def outputs_finite(model: ModelUnderTest) -> Iterator[Finding]:
    """No output is NaN or infinite.

    One NaN among a thousand predictions turns the Evaluator's metric into NaN, which no threshold
    refuses, and a client shows it as it is.

    Example: a feature that is divided by its own mean, which is 0 for one of the eval examples.
    """
    for name, scored in model.scores.items():
        for key, output in sorted(scored.batch.items()):
            if is_float(output) and not np.isfinite(output.astype(np.float64)).all():
                is_nan = bool(np.isnan(output.astype(np.float64)).any())
                kind = "NaN" if is_nan else "infinite values"
                yield of_rows(
                    model,
                    is_nan and scored.feed.real and name in model.serving_signatures,
                    f"signature {name!r}: output {key!r} has {kind} for {scored.feed.source}",
                    "look for a division by zero, the log of zero, or features whose missing "
                    "values became NaN; the Evaluator turns NaN into silent nonsense",
                )


@check("outputs_vary", needs=("scores",))
def outputs_vary(model: ModelUnderTest) -> Iterator[Finding]:
    """Different examples do not all get the same outputs.

    A model that gives everybody the same has not read its features, or has learned nothing. It
    loads, serves and has a plausible accuracy where classes are uneven.

    Example: a signature that parses `"x"` while the examples have `"X"`, and fills in the default.
    """
    for name, scored in model.served_scores.items():
        if name.startswith(_PREPROCESSING):
            continue  # it may return the label, of which a few examples can well have one value
        if scored.feed.real and scored.feed.rows > 1 and all(map(_constant, scored.batch.values())):
            yield warn(
                f"signature {name!r} gives the same outputs for {scored.feed.rows} examples",
                "see whether the features reach the model (names, vocabulary, scaling) and "
                "whether it was trained",
            )


def _constant(output: np.ndarray) -> bool:
    return output.ndim > 0 and len(output) > 1 and bool((output == output[:1]).all())


@check("deterministic", needs=("scores",))
def deterministic(model: ModelUnderTest) -> Iterator[Finding]:
    """The same batch scored twice gives the same outputs.

    The same request must have the same answer; otherwise no prediction can be explained, cached, or
    compared with that of the next model.

    Example: dropout that is active in the exported function: `model(x, training=True)`.
    """
    for name, scored in model.scores.items():
        for key in sorted(scored.batch):
            changed, certain = scored.varies(key)
            if changed:
                yield of_rows(
                    model,
                    certain and name in model.serving_signatures,
                    f"signature {name!r}, output {key!r}: the second call gives {changed}",
                    "call the model with training=False in the exported function: dropout or "
                    "another random op is live",
                )
        clocks = [
            n
            for n in nodes_of(model.meta_graph.graph_def, model.signatures[name])
            if n.op == "Timestamp"
        ]
        if clocks and name in model.serving_signatures:
            yield of_rows(
                model,
                False,
                f"signature {name!r} reads the clock: the same rows give something else later",
                "let the time be an input, which examples have as well",
            )


@check("row_independence", needs=("scores",))
def row_independence(model: ModelUnderTest) -> Iterator[Finding]:
    """A row scored alone, or in a smaller batch, gives what it gives in the full batch.

    A prediction that depends on its neighbours changes with the traffic. In the Evaluator's batches
    it looks fine.

    Example: `BatchNormalization` called with `training=True`; scores that are divided by the sum
    over the batch.
    """
    for name, scored in model.scores.items():
        for key in sorted(scored.batch):
            message, certain = first_difference(scored, key)
            if message and not scored.varies(key)[0]:
                yield of_rows(
                    model,
                    certain and name in model.serving_signatures,
                    f"signature {name!r}, output {key!r}: {message}",
                    "a prediction must not depend on which examples share its batch: normalise "
                    "with statistics from training (BatchNormalization with training=False, or "
                    "Transform) and not over the batch",
                )


def first_difference(scored: Scores, key: str) -> tuple[str, bool]:
    """Returns how an output of a row differs in a smaller batch; see `difference`."""
    batch = scored.batch[key]
    if batch.ndim == 0 or len(batch) != scored.feed.rows:
        return "", False  # output_per_row says so
    for row, outputs in enumerate(scored.single):
        changed, certain = difference(np.atleast_1d(outputs[key]), batch[row : row + 1])
        if changed:
            return f"row {row} alone gives {changed} in a batch of {len(batch)}", certain
    changed, certain = difference(np.atleast_1d(scored.odd[key]), batch[:ODD_ROWS])
    size = min(ODD_ROWS, len(batch))
    return (f"a batch of {size} gives {changed} in one of {len(batch)}" if changed else ""), certain
