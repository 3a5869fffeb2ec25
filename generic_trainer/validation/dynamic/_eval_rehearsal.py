"""Does the Evaluator work on this model?"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from generic_trainer.validation import _tfma_rehearsal
from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail, note, skip
from generic_trainer.validation._scoring import first_line

__all__ = ["eval_rehearsal"]


@check("eval_rehearsal", needs=("loads", "devices", "eval_signatures"))
def eval_rehearsal(model: ModelUnderTest) -> Iterator[Finding]:
    """TFMA evaluates the model on a few examples, and every metric is a number."""
    if model.eval_config is None or not model.records:
        yield skip("needs an eval config and examples in the contract")
        return
    if model.contract.examples_transformed:
        yield skip("the examples at hand are transformed ones; name raw ones in the contract")
        return
    model.release()
    with tempfile.TemporaryDirectory() as folder:
        try:
            metrics = _tfma_rehearsal.rehearse(
                model.eval_config,
                str(model.directory),
                model.contract.base_model,
                model.records[: _tfma_rehearsal.EXAMPLES],
                model.schema,
                Path(folder) / "result",
            )
        except Exception as error:
            yield fail(
                f"the Evaluator would fail: {_reason(error)}",
                "correct the eval config or the signature that it calls; the other checks on "
                "eval_config and eval_signatures name what is known to go wrong",
            )
            return
    model.facts["rehearsed_metrics"] = {k: v for k, v in metrics.items() if math.isfinite(v)}
    for name, value in sorted(metrics.items()):
        if not math.isfinite(value):
            yield fail(
                f"metric {name!r} is {value} on {_tfma_rehearsal.EXAMPLES} examples",
                "look for NaN among the predictions and labels; TFMA reports it without an error",
            )
    yield note(", ".join(f"{name} = {value:.4g}" for name, value in sorted(metrics.items())))


def _reason(error: Exception) -> str:
    """Returns the innermost cause: Beam wraps it in stack traces of its own."""
    text = first_line(error)
    inner = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception): .+)$", str(error), re.MULTILINE)
    return (inner[-1] if inner else text)[:600]
