"""Can every variable be read from its file?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail, skip

__all__ = ["variables_read"]

_VARIABLE_OPS = ("VarHandleOp", "VariableV2", "Variable")
_REMEDY = (
    "the files of variables/ are damaged or incomplete: export again, copy whole files, and "
    "compare with the sizes at the source"
)


@check("variables_read", needs=("serve_tag",))
def variables_read(model: ModelUnderTest) -> Iterator[Finding]:
    """Every variable is complete, and its checksum is right."""
    if Path("variables/variables.index") not in model.files:
        if any(node.op in _VARIABLE_OPS for node in model.nodes):
            yield fail("the model has variables and no variables/variables.index", _REMEDY)
        else:
            yield skip("the model has no variables")
        return
    try:
        unreadable = model.variable_scan.unreadable
    except Exception as error:
        yield fail(f"variables/ cannot be opened: {_first_line(error)}", _REMEDY)
        return
    for name, reason in unreadable.items():
        yield fail(f"variable {name!r} cannot be read: {reason}", _REMEDY)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
