"""Do the signatures score examples?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from generic_trainer.validation._check import check
from generic_trainer.validation._feeds import Feed, feed_for
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail, note, warn
from generic_trainer.validation._scoring import call, first_line, score

__all__ = ["scores"]


@check("scores", needs=("loads", "devices", "signatures_exist", "inputs_read"))
def scores(model: ModelUnderTest) -> Iterator[Finding]:
    """Every signature scores a batch, an odd remainder of one, and single rows.

    The rows are the contract's examples where they fit the signature. Made-up rows stand in
    elsewhere; what they cannot be scored with is a warning, as the model may rightly refuse them.
    """
    for name, signature in model.signatures.items():
        feed = feed_for(model, signature)
        if feed is None:
            yield note(f"signature {name!r} takes no dense tensors: not called")
            continue
        loaded = model.loaded.signatures[name]
        try:
            model.scores[name] = score(loaded, feed)
            yield note(f"signature {name!r} scored {feed.rows} rows of {feed.source}")
        except Exception as error:
            told = f"signature {name!r} with {feed.source}: {first_line(error)}"
            if _out_of_memory(error):
                yield fail(told, "reduce what the signature allocates for one batch")
            else:
                yield _judge(name in model.serving_signatures, loaded, feed, told)


def _out_of_memory(error: Exception) -> bool:
    import tensorflow as tf

    return isinstance(error, (MemoryError, tf.errors.ResourceExhaustedError))


def _judge(served: bool, loaded: Any, feed: Feed, told: str) -> Finding:
    if served and _scores_alone(loaded, feed):
        return fail(
            f"{told}; single rows are scored",
            "the function is made for one row: replace fixed sizes (reshape to [1, ...], x[0]) by "
            "ones that follow the batch. The Evaluator would silently fall back to row by row",
        )
    if not feed.real:
        return warn(
            told,
            "these rows were made up from the graph; pass real ones with "
            "ServingContract(examples=...) to know whether the model is at fault",
        )
    return (fail if served else warn)(
        told,
        "every consumer will see this error: make the signature parse what the examples hold "
        "(names, dtypes, optional features with a default_value), with any number of rows",
    )


def _scores_alone(loaded: Any, feed: Feed) -> bool:
    try:
        call(loaded, feed.take([0]))
    except Exception:
        return False
    return True
