"""The processes of a cluster, and what `TF_CONFIG` tells each of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from generic_trainer.launchers._distribution import Distribution

__all__ = ["Member", "members", "tf_config_of"]


@dataclasses.dataclass(frozen=True)
class Member:
    """A process of the cluster.

    Attributes:
        task: `"chief"`, `"worker"` or `"ps"`.
        index: its number among those of the same task.
        is_server: whether it takes orders from the chief instead of calling `run_fn`.
    """

    task: str
    index: int
    is_server: bool = False

    @property
    def name(self) -> str:
        """What it is called in logs and messages."""
        return self.task if self.task == "chief" else f"{self.task} {self.index}"

    @property
    def is_chief(self) -> bool:
        """Whether it exports the model."""
        return self.task == "chief"


def members(distribution: Distribution) -> tuple[Member, ...]:
    """Returns all processes, the chief first.

    Without parameter servers the chief is one of the `num_workers`; with them it trains nothing
    itself and comes in addition.
    """
    if not distribution.parameter_servers:
        others = [Member("worker", index) for index in range(distribution.num_workers - 1)]
        return (Member("chief", 0), *others)
    counts = {"worker": distribution.num_workers, "ps": distribution.parameter_servers}
    servers = [Member(task, i, True) for task, count in counts.items() for i in range(count)]
    return (Member("chief", 0), *servers)


def tf_config_of(member: Member, addresses: Mapping[Member, str]) -> str:
    """Returns the `TF_CONFIG` of one process.

    Args:
        member: the process.
        addresses: "host:port" of every process, in the order of `members`.
    """
    cluster: dict[str, list[str]] = {}
    for each, address in addresses.items():
        cluster.setdefault(each.task, []).append(address)
    return json.dumps({"cluster": cluster, "task": {"type": member.task, "index": member.index}})
