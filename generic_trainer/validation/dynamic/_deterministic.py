"""Does the same input give the same output?"""

from __future__ import annotations

from collections.abc import Iterator

from generic_trainer.validation._check import check
from generic_trainer.validation._compare import difference
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail, warn
from generic_trainer.validation._scoring import call

__all__ = ["deterministic"]


@check("deterministic", needs=("scores",))
def deterministic(model: ModelUnderTest) -> Iterator[Finding]:
    """The same batch scored twice gives the same outputs."""
    for name, scores in model.scores.items():
        again = call(model.loaded.signatures[name], scores.feed.inputs)
        for key, expected in sorted(scores.batch.items()):
            found, certain = difference(again[key], expected)
            if found:
                yield (fail if certain else warn)(
                    f"signature {name!r}, output {key!r}: the second call gives {found}",
                    "call the model with training=False in the exported function: dropout or "
                    "another random op is live; severities={'deterministic': 'warn'} accepts a "
                    "model that is meant to sample",
                )
