"""What each worker asks of Ray, and what to say when a cluster does not have it."""

from __future__ import annotations

from collections.abc import Mapping

from generic_trainer.launchers._distribution import Distribution

__all__ = ["missing_resources", "no_room", "resources_per_worker"]

_MIB = 1 << 20


def resources_per_worker(distribution: Distribution) -> dict[str, float]:
    """Returns Ray's name of a resource → how much of it every worker reserves.

    Ray Train's workers are all alike: a parameter server reserves what a worker does.
    """
    gpus = distribution.gpus_per_worker
    asked = {
        "CPU": 1.0 if distribution.cpus_per_worker is None else distribution.cpus_per_worker,
        "GPU": float(distribution.require_gpu) if gpus is None else gpus,
        "memory": (distribution.memory_mb_per_worker or 0) * _MIB,
    }
    return {name: amount for name, amount in asked.items() if amount}


def missing_resources(distribution: Distribution, total: Mapping[str, float]) -> list[str]:
    """Returns the names of the resources of which a cluster has too little for all workers."""
    asked = resources_per_worker(distribution)
    count = distribution.num_processes
    return [name for name, each in asked.items() if each * count > total.get(name, 0.0)]


def no_room(
    distribution: Distribution, total: Mapping[str, float], waited_s: float | None = None
) -> str:
    """Returns the message for workers that cannot be placed.

    Args:
        distribution: what was asked for.
        total: Ray's name of a resource → how much of it the cluster has.
        waited_s: how long was waited, in seconds; None where there was nothing to wait for.
    """
    asked = resources_per_worker(distribution)
    waited = "" if waited_s is None else f" within {waited_s:g} s"
    return (
        f"The workers could not be placed{waited}. Expected room for "
        f"{distribution.num_processes} x ({_listed(asked)}), found a cluster with "
        f"{_listed({name: total.get(name, 0.0) for name in asked})} in all, perhaps in use or "
        "scattered over its nodes. Ask for fewer or smaller workers, add nodes, or give an "
        "autoscaler more time with RayOptions(connect_timeout_s=...)."
    )


def _listed(amounts: Mapping[str, float]) -> str:
    return ", ".join(_shown(name, amount) for name, amount in amounts.items())


def _shown(name: str, amount: float) -> str:
    if name == "memory":
        return f"{amount / _MIB:.0f} MiB of memory"
    return f"{amount:g} {name}{'' if amount == 1 else 's'}"
