"""Does the graph use ops that the contract forbids?"""

from __future__ import annotations

from collections.abc import Iterator

from generic_trainer.validation._check import check
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._ops import listed, using
from generic_trainer.validation._result import Finding, fail, skip

__all__ = ["denied_ops"]


@check("denied_ops", needs=("serve_tag",))
def denied_ops(model: ModelUnderTest) -> Iterator[Finding]:
    """No op is one of the contract's denied ones, not even inside a branch or a loop."""
    if not model.contract.denied_ops:
        yield skip("the contract denies no op")
        return
    found = using(model.nodes, model.contract.denied_ops, ())
    if found:
        yield fail(
            f"denied by the contract: {listed(found)}",
            "replace the op, or take it out of ServingContract(denied_ops=...)",
        )
