"""Custom job of Vertex AI: its specification, and how a replica knows its task.

Source: https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.customJobs
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from generic_trainer._core.cluster import Task
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers._distribution import Distribution, tasks
from generic_trainer.launchers._options import VertexOptions

_PROGRAM = "generic_trainer.launchers._vertex.program"


def pools_of(distribution: Distribution) -> list[list[Task]]:
    """Returns the tasks of each worker pool."""
    first, *others = tasks(distribution)
    workers = [task for task in others if task.type != "ps"]
    servers = [task for task in others if task.type == "ps"]
    return [pool for pool in ([first], workers, servers) if pool]


def custom_job(distribution: Distribution, name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the `CustomJob`, as its proto has it.

    Args:
        distribution: what was asked for, with the workers' environment in `env`.
        name: of the job, where the options give none.
        arguments: of the program; see `_vertex.program`.
    """
    options = distribution.vertex or VertexOptions()
    scheduling: dict[str, Any] = {"disable_retries": True}
    if options.spot:
        scheduling["strategy"] = "SPOT"
    if distribution.timeout_s is not None:  # for when nobody is left to stop it
        scheduling["timeout"] = {"seconds": math.ceil(distribution.timeout_s)}
    pools = pools_of(distribution)
    spec: dict[str, Any] = {
        "worker_pool_specs": [_pool(distribution, options, pool) for pool in pools],
        "scheduling": scheduling,
    }
    for field, value in (
        ("service_account", options.service_account),
        ("network", options.network),
        ("persistent_resource_id", options.persistent_resource),
    ):
        if value is not None:
            spec[field] = value
    made: dict[str, Any] = _merged(
        {
            "display_name": options.display_name or name,
            "labels": dict(options.labels),
            "job_spec": spec,
        },
        options.custom_job,
    )
    # The rest is the user's to change, but not what runs there, and how often.
    given = made["job_spec"]["worker_pool_specs"]
    if len(given) != len(pools):
        raise ConfigurationError(
            f"vertex.custom_job: expected {len(pools)} worker pools for num_workers="
            f"{distribution.num_workers} and parameter_servers={distribution.parameter_servers}, "
            f"found {len(given)}. Leave worker_pool_specs out, or give the same number."
        )
    for pool, spec in zip(pools, given, strict=True):
        spec["replica_count"] = len(pool)
        spec["container_spec"]["command"] = ["python", "-m", _PROGRAM]
        spec["container_spec"]["args"] = list(arguments)
    return made


def _pool(
    distribution: Distribution, options: VertexOptions, pool: Sequence[Task]
) -> dict[str, Any]:
    task = pool[0]
    machine: dict[str, Any] = {"machine_type": options.machine_type}
    if task.type == "ps" and options.parameter_server_machine_type is not None:
        machine["machine_type"] = options.parameter_server_machine_type
    gpus = distribution.gpus_per_worker
    gpus = int(distribution.require_gpu) if gpus is None else int(gpus)
    # Parameter servers, and a chief that only sends orders, have no use for any.
    if gpus and (task.type == "worker" or not distribution.parameter_servers):
        machine |= {"accelerator_type": distribution.gpu_type, "accelerator_count": gpus}
    spec: dict[str, Any] = {
        "machine_spec": machine,
        "container_spec": {
            "image_uri": options.image,
            "env": [{"name": name, "value": value} for name, value in distribution.env.items()],
        },
    }
    disk = {
        "boot_disk_type": options.boot_disk_type,
        "boot_disk_size_gb": options.boot_disk_size_gb,
    }
    if disk := {name: value for name, value in disk.items() if value is not None}:
        spec["disk_spec"] = disk
    return spec


def _merged(ours: Any, theirs: Any) -> Any:
    """Returns ours with what they change: objects field by field, pools one by one, `env` added."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        merged = {**theirs, **ours}
        for name in ours.keys() & theirs.keys():
            both = ours[name], theirs[name]
            merged[name] = [*both[0], *both[1]] if name == "env" else _merged(*both)
        return merged
    if isinstance(ours, list) and isinstance(theirs, Sequence):
        more = [dict(pool) for pool in theirs[len(ours) :]]
        return (
            [_merged(*both) for both in zip(ours, theirs, strict=False)]
            + ours[len(theirs) :]
            + more
        )
    return theirs
