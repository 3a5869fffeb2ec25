"""The check that calls the signatures, whose outputs other checks look at."""

import contextlib
from collections.abc import Sequence

from generic_trainer._core.texts import reason_of
from generic_trainer.validation._check import (
    Finding,
    Findings,
    Skip,
    check,
    fail,
    note,
    untested,
    warn,
)
from generic_trainer.validation._feeds import feed_for, free_dims, why_unfit
from generic_trainer.validation._lists import filled
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._report import keep_example
from generic_trainer.validation._schema_rows import parsed
from generic_trainer.validation._scoring import ODD_ROWS, Feed, Inputs
from generic_trainer.validation._signatures import Signature

SIZES_REMEDY = (
    "replace fixed sizes, such as reshape to [1, ...] or x[0], by ones that follow the batch: "
    "consumers choose them, and a last batch is smaller"
)
ALONE_REMEDY = (
    "give an absent feature the shape that it has in a batch, such as tf.sparse.to_dense of a "
    "tf.SparseTensor with dense_shape=[batch, 1], or default_value: clients send single rows"
)
_UNFIT_REMEDY = (
    "give inputs the names and dtypes of the examples' features, and at most one free dimension "
    "beside the rows; or let a signature parse the examples, and pad lists of different lengths"
)
_ANY_ROW_REMEDY = (
    "initialise tables and variables when the model is loaded, and use ops that the CPU of a "
    "server has. If a consumer has others: ServingContract(severities={'scores': 'warn'})"
)


@check(after="loads", needs="loads devices signatures_exist inputs_read")
def scores(model: ModelUnderTest) -> Findings:
    """Every signature scores a batch, an odd remainder of one, and single rows.

    The rows are the contract's examples if they fit the signature, and made-up ones otherwise. A
    failure for made-up rows is a warning, as the model may rightly refuse them, unless the error
    does not depend on the rows; so is that the examples fit no signature. Clients send single
    rows, so each real one must be scored alone. A signature that computes what one for consumers
    does is not called a second time.

    Example: a reshape to `[32, 10]`, which the last batch of 7 rows does not fit; a variable that
    is not initialised when the model is loaded.
    """
    # What a training step changes, other signatures have been scored with before.
    ordered = sorted(model.signatures.items(), key=lambda item: item[1].assigns)
    for name, signature in ordered:
        served = name in model.serving_signatures
        if not served and (signature.assigns or not signature.inputs):
            what = "changes the model's variables" if signature.assigns else "takes no inputs"
            yield untested(f"signature {name!r} {what}: not called")
            continue
        if (feed := feed_for(model, signature, free=free_dims(signature)[0])) is None:
            yield untested(f"signature {name!r} takes no dense tensors of raw rows: not called")
            continue
        if not served and (same := _same_served(model, signature)):
            yield note(f"signature {name!r} computes what {same!r} does: not called")
            continue
        try:
            feed = _score(model, name, feed)
            yield note(f"signature {name!r} scored {feed.rows} rows of {feed.source}")
        except Exception as error:
            yield from _why_not_scored(model, name, feed, error)
    yield from _unfit(model)
    model.facts["rows_scored"] = sum(scored.feed.rows for scored in model.served_scores.values())
    if not model.scores:
        raise Skip("no row was scored")


def _score(model: ModelUnderTest, name: str, feed: Feed) -> Feed:
    """Scores rows, of which a free dimension that was made up may be too large, and returns them.

    Raises:
        Exception: the signature scores them at no size; the error is that of the largest.
    """
    try:
        model.score(name, feed)
    except Exception:
        signature = model.signatures[name]
        for free in free_dims(signature)[1:] if feed.free else ():
            with contextlib.suppress(Exception):
                if smaller := feed_for(model, signature, free=free):
                    model.score(name, smaller)
                    return smaller
        raise
    return feed


def _unfit(model: ModelUnderTest) -> Findings:
    """Yields why the contract's examples fit no signature, if rows were made up instead."""
    served = [s for s in model.served_scores.values() if s.feed.inputs]
    if any(scored.feed.real for scored in served):
        return
    for name, scored in model.served_scores.items():
        signature = model.signatures[name]
        reason = why_unfit(model, signature)
        takes_text = signature.is_serialized and not signature.parses
        if scored.feed.inputs and reason and not takes_text:
            message = f"signature {name!r} scored made-up rows, as the examples do not fit"
            yield warn(f"{message}: {reason}", _UNFIT_REMEDY)


def _same_served(model: ModelUnderTest, signature: Signature) -> str:
    """Returns a signature that consumers use and that computes the same; empty if there is none.

    To call both would double the time of this check and of `session`.
    """
    served = model.serving_signatures.items()
    same = (name for name, other in served if signature.call and other.call == signature.call)
    return next(same, "")


def _why_not_scored(model: ModelUnderTest, name: str, feed: Feed, error: Exception) -> Findings:
    """Yields findings of a signature that does not score all sizes of batches, or none."""
    import tensorflow as tf

    served = name in model.serving_signatures
    judge = fail if served else warn
    message = f"signature {name!r} with {feed.source}: {reason_of(error)}"
    if isinstance(error, (MemoryError, tf.errors.ResourceExhaustedError)):
        yield fail(message, "let the signature allocate less for one batch")
        return
    alone = _scored_alone(model, name, feed) if served and feed.divisible else []
    if served and feed.divisible and _works(model, name, feed.inputs):
        yield _of_smaller_batches(model, name, feed, alone, message)
    elif alone and len(alone) == feed.rows and feed.is_coherent:
        yield fail(f"{message}; single rows are scored", SIZES_REMEDY)
    elif not alone and _is_of_any_row(model, name, feed, error):
        yield judge(f"{message}; no request can be answered", _ANY_ROW_REMEDY)
    elif feed.real:
        yield judge(
            message,
            "let the signature parse the examples: names, dtypes, default_value of optional ones",
        )
    else:
        if alone and feed.is_coherent:
            with contextlib.suppress(Exception):  # together they may not be scored
                model.score(name, feed.part(alone))
                yield note(f"signature {name!r} scored {len(alone)} rows of {feed.source}")
        yield _of_made_up(feed, message, why_unfit(model, model.signatures[name]))


def _is_of_any_row(model: ModelUnderTest, name: str, feed: Feed, error: Exception) -> bool:
    """Returns whether an error does not depend on the rows."""
    import tensorflow as tf

    kinds = tf.errors.FailedPreconditionError, tf.errors.NotFoundError
    if not isinstance(error, (*kinds, tf.errors.UnimplementedError, tf.errors.InternalError)):
        return False
    # Ops of other libraries raise any errors, and a made-up word is not the name of a file.
    by_rows = model.foreign_ops.keys() | set(model.contract.allowed_ops)
    return feed.real or by_rows.isdisjoint(model.signatures[name].ops)


def _of_made_up(feed: Feed, message: str, unfit: str) -> Finding:
    if not feed.records and any(array.dtype == object for array in feed.inputs.values()):
        return untested(f"{message}: made-up words may well be unknown")
    subject = "these are made up" if feed.is_coherent else "made-up inputs may not fit together"
    if unfit:
        return warn(f"{message}; the examples do not fit: {unfit}", f"{_UNFIT_REMEDY}: {subject}")
    return warn(message, f"name real rows with ServingContract(examples=...): {subject}")


def _of_smaller_batches(
    model: ModelUnderTest, name: str, feed: Feed, alone: Sequence[int], message: str
) -> Finding:
    """Returns the finding of a signature that scores a batch, and smaller ones not."""
    message += f"; a batch of {feed.rows} is scored, and smaller ones are not"
    missed = [row for row in range(feed.rows) if row not in alone]
    if not feed.real:
        return model.of_rows(feed.is_coherent, message, SIZES_REMEDY)
    if not (alone and missed):
        return fail(message, SIZES_REMEDY, may_be_meant=True)
    examples = parsed(feed.records)
    present = [filled(example) for example in examples]
    absent = set.intersection(*(present[row] for row in alone)) - present[missed[0]]
    absent &= model.signatures[name].features.keys() or absent
    message += f": {len(alone)} examples are scored alone"
    message += f", and example {missed[0]} of the sample is not"
    message += f", which lacks {sorted(absent)}" if absent else ""
    message += f"; {keep_example(model.facts, examples[missed[0]])}"
    return fail(message, ALONE_REMEDY, may_be_meant=True)


def _works(model: ModelUnderTest, name: str, inputs: Inputs) -> bool:
    with contextlib.suppress(Exception):
        model.call(name, inputs)
        return True
    return False


def _scored_alone(model: ModelUnderTest, name: str, feed: Feed) -> list[int]:
    """Returns the rows that can be scored alone, none if the first ones cannot."""
    scored = []
    for row in range(feed.rows):
        scored += [row] * _works(model, name, feed.take([row]))
        if row == ODD_ROWS and not scored:
            break
    return scored
