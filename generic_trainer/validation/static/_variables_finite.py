"""Are the weights numbers?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail, skip, warn

__all__ = ["variables_finite"]

_KEY = "/.ATTRIBUTES/VARIABLE_VALUE"


@check("variables_finite", needs=("variables_read",))
def variables_finite(model: ModelUnderTest) -> Iterator[Finding]:
    """No weight is NaN or infinite."""
    if Path("variables/variables.index") not in model.files:
        yield skip("the model has no variables")
        return
    found = model.variable_scan
    if found.nan:
        yield fail(
            f"NaN in {_listed(found.nan)}",
            "training diverged: look at the loss, lower the learning rate, clip gradients, and "
            "look for NaN in the examples",
        )
    if found.infinite:
        yield warn(
            f"infinite values in {_listed(found.infinite)}",
            "fine in a mask; in a weight it means that training diverged",
        )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name.removesuffix(_KEY)) for name in names[:5])
    return f"{len(names)} variables: {shown}" + (", ..." if len(names) > 5 else "")
