"""Is the graph tied to the machines that trained it?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from generic_trainer.validation._check import check
from generic_trainer.validation._graph import Node
from generic_trainer.validation._model import ModelUnderTest
from generic_trainer.validation._result import Finding, fail, warn

__all__ = ["devices"]

_COLLECTIVE = re.compile(r"Collective|Nccl|TPUReplicate|XlaAllReduce|ConfigureDistributedTPU")
_FOREIGN = re.compile(r"/job:(?!localhost\b)\w+")
_ACCELERATOR = re.compile(r"(GPU|TPU)", re.IGNORECASE)


@check("devices", needs=("serve_tag",))
def devices(model: ModelUnderTest) -> Iterator[Finding]:
    """No op is tied to a worker, an accelerator or the other replicas of the training.

    The checks that run the model need this one: a collective waits for ever.
    """
    nodes = [node for node in model.nodes if node.op not in model.contract.allowed_ops]
    leftovers = [node for node in nodes if _COLLECTIVE.match(node.op)]
    foreign = [node for node in nodes if _FOREIGN.search(node.proto.device)]
    pinned = [node for node in nodes if node not in foreign and _on_accelerator(node)]
    if leftovers:
        yield fail(
            f"waits for other replicas: {_placed(leftovers)}",
            "export on the chief outside strategy.run, or with "
            "generic_trainer.training.export_model, which leaves collectives out",
        )
    if foreign:
        yield fail(
            f"placed on a worker that will not exist: {_placed(foreign)}",
            "export with generic_trainer.training.export_model, which clears the devices, or "
            "build the exported function outside the strategy's scope",
        )
    if pinned:
        yield warn(
            f"pinned to an accelerator: {_placed(pinned)}",
            "leave tf.device out of the exported function: a session without soft placement, "
            "such as BulkInferrer's, fails on machines that have none",
        )


def _on_accelerator(node: Node) -> bool:
    return bool(_ACCELERATOR.search(node.proto.device))


def _placed(nodes: list[Node]) -> str:
    shown = "; ".join(
        f"{n.op} {n.where}" + (f" on {n.proto.device}" if n.proto.device else "") for n in nodes[:3]
    )
    return shown + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
