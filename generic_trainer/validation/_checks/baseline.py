"""Comparison of the model with the base model, the one that serves now."""

from collections.abc import Iterator

import numpy as np

from generic_trainer._core.texts import reason_of
from generic_trainer.validation._check import Finding, Skip, check, note, warn
from generic_trainer.validation._checks.graph import why_not_run
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._scoring import call, is_float
from generic_trainer.validation._signatures import described

_BASE_REMEDY = "keep the old names beside the new ones, or change the clients first"


@check(needs=("loads", "devices"), is_advisory=True)
def base_model(model: ModelUnderTest) -> Iterator[Finding]:
    """Signatures, ops and assets are those of the base model, and predictions are alike.

    If a new model behaves differently, the changes since the model that serves now are the first
    clue. The check compares and warns; a base model that is damaged, crashes or would reach files
    is a warning too, and is not run in the last case.

    Example: an input that the base model has and this one does not; predictions that are all
    shifted.
    """
    base = model.base
    if base is None:
        raise Skip("the contract names no base model")
    try:
        base.signatures  # noqa: B018 - parses on first use
    except Exception as error:
        message = f"the base model {model.contract.base_model} cannot be read: {reason_of(error)}"
        yield warn(message, "point base_model at the directory that holds its saved_model.pb")
        return
    for change in _changes(base, model):
        yield warn(change, _BASE_REMEDY)
    if reason := why_not_run(base):
        message = "the base model is not run, because it would reach files or the network: "
        yield warn(message + reason, "accept its ops with ServingContract(allowed_ops=...)")
        return
    yield from _changed_predictions(base, model)


def _changes(base: ModelUnderTest, model: ModelUnderTest) -> Iterator[str]:
    for name, old in base.signatures.items():
        new = model.signatures.get(name)
        if new is None:
            yield f"signature {name!r} of the base model is gone"
            continue
        for kind in ("inputs", "outputs"):
            before, after = (described(getattr(each, kind)) for each in (old, new))
            if before != after:
                yield f"signature {name!r}: {kind} were {before}, are {after}"
    old_ops, new_ops = ({node.op for node in m.nodes if node.served} for m in (base, model))
    if new_ops - old_ops:
        yield f"ops that the base model did not use: {', '.join(sorted(new_ops - old_ops))}"
    old_assets, new_assets = ({asset.filename for asset in m.assets} for m in (base, model))
    if old_assets != new_assets:
        yield f"assets were {sorted(old_assets)}, are {sorted(new_assets)}"


def _changed_predictions(base: ModelUnderTest, model: ModelUnderTest) -> Iterator[Finding]:
    for name, scores in model.scores.items():
        if name not in base.signatures or name not in model.serving_signatures:
            continue
        try:
            outputs = call(base.loaded.signatures[name], scores.feed.inputs)
        except Exception as error:
            message = f"the base model's signature {name!r} does not score {scores.feed.source}"
            yield warn(f"{message}: {reason_of(error)}", "compare the two on other examples")
            continue
        for key in sorted(set(outputs) & set(scores.batch)):
            subject = f"signature {name!r}, output {key!r}"
            yield _compare_outputs(subject, scores.batch[key], outputs[key])
    base.release()


def _compare_outputs(subject: str, new: np.ndarray, old: np.ndarray) -> Finding:
    if new.shape != old.shape:
        return note(f"{subject}: shapes {new.shape} and {old.shape}, not compared")
    if not is_float(new):
        return note(f"{subject}: {float(np.mean(new != old)):.0%} of the values differ")
    gap = float(np.mean(np.abs(new.astype(np.float64) - old.astype(np.float64))))
    size = float(np.mean(np.abs(old.astype(np.float64))))
    message = f"{subject}: differs by {gap:.3g} on average; the base model's average is {size:.3g}"
    remedy = "see whether the new model has learnt the same target in the same unit"
    return warn(message, remedy) if gap > size else note(message)
