"""Does the graph need ops that plain TensorFlow has not?"""

from __future__ import annotations

from collections.abc import Iterator

from generic_trainer.validation._check import check
from generic_trainer.validation._graph import Node
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._ops import library_of, listed
from generic_trainer.validation._result import Finding, fail, note

__all__ = ["unregistered_ops"]


@check("unregistered_ops", needs=("serve_tag",))
def unregistered_ops(model: ModelUnderTest) -> Iterator[Finding]:
    """Every op is one of TensorFlow's own, in the TensorFlow that is installed here."""
    from tensorflow.python.framework import op_def_registry

    unknown: dict[str, list[Node]] = {}
    for node in model.nodes:
        if op_def_registry.get(node.op) is None:
            unknown.setdefault(node.op, []).append(node)
    for op, nodes in sorted(unknown.items()):
        if op in model.contract.allowed_ops:
            yield note(f"{op} is accepted by the contract")
        else:
            yield fail(f"TensorFlow has no op {op!r}: {listed(nodes)}", _remedy(op))


def _remedy(op: str) -> str:
    module = library_of(op)
    source = f"it comes from {module}" if module else "it comes from a library of your own"
    return (
        f"{source}, which every consumer would have to load; if yours do, set "
        f"ServingContract(allowed_ops=({op!r},)), else move the step into Transform"
    )
