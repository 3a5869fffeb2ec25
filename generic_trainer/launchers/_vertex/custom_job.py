"""Custom job of Vertex AI: its specification, and the place of a replica in its cluster.

Source: https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.customJobs
"""

import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from generic_trainer._core.cluster import TF_CONFIG, Task, make_tf_config
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers._distribution import Distribution, tasks
from generic_trainer.launchers._options import VertexOptions
from generic_trainer.launchers._remote.service import PROGRAM, gpus_of, variables

CLUSTER_SPEC = "CLUSTER_SPEC"
# Label with this package's name of a job, by which a job is found if the answer was lost.
LABEL = "generic_trainer_job"
_POOL = "workerpool"


def pools_of(distribution: Distribution) -> list[list[Task]]:
    """Returns the tasks of each worker pool."""
    first, *others = tasks(distribution)
    workers = [task for task in others if task.type != "ps"]
    servers = [task for task in others if task.type == "ps"]
    return [pool for pool in ([first], workers, servers) if pool]


def custom_job(distribution: Distribution, name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the `CustomJob`, with the fields of its proto.

    Args:
        distribution: the distribution, with the workers' environment in `env`.
        name: of the job.
        arguments: of the program; see `_remote.program`.

    Raises:
        ConfigurationError: the options contradict the distribution.
    """
    options: Any = distribution.vertex  # which the launcher requires
    scheduling: dict[str, Any] = {"disable_retries": True}
    if options.spot:
        scheduling["strategy"] = "SPOT"
    if distribution.timeout_s is not None:  # in case this process is killed
        scheduling["timeout"] = {"seconds": math.ceil(distribution.timeout_s)}
    pools = pools_of(distribution)
    spec: dict[str, Any] = {
        "worker_pool_specs": [_pool(distribution, options, pool[0]) for pool in pools],
        "scheduling": scheduling,
    }
    if options.service_account is not None:
        spec["service_account"] = options.service_account
    job: dict[str, Any] = _merged(
        {"display_name": name, "labels": dict(options.labels), "job_spec": spec},
        options.custom_job,
    )
    job["labels"][LABEL] = name
    # Users may change all but the program and the number of its replicas.
    specs = job["job_spec"]["worker_pool_specs"]
    if len(specs) != len(pools):
        raise ConfigurationError(
            f"vertex.custom_job: expected {len(pools)} worker pools for num_workers="
            f"{distribution.num_workers} and parameter_servers={distribution.parameter_servers}, "
            f"found {len(specs)}. Leave worker_pool_specs out, or give the same number."
        )
    for pool, pool_spec in zip(pools, specs, strict=True):
        pool_spec["replica_count"] = len(pool)
        pool_spec["container_spec"]["command"] = ["python", "-m", PROGRAM]
        pool_spec["container_spec"]["args"] = list(arguments)
    return job


def cluster_variables(distribution: Distribution) -> dict[str, str]:
    """Returns the `TF_CONFIG` of this replica, made of its `CLUSTER_SPEC`; empty if it is alone.

    Raises:
        ConfigurationError: the replicas are not those of the distribution.
    """
    text = os.environ.get(CLUSTER_SPEC)
    if not distribution.is_cluster or not text:
        return {}
    spec = json.loads(text)
    pools = pools_of(distribution)
    hosts = [spec["cluster"].get(f"{_POOL}{number}", []) for number in range(len(pools))]
    if [*map(len, hosts)] != [*map(len, pools)]:
        raise ConfigurationError(
            f"{CLUSTER_SPEC}: expected pools of the sizes {[*map(len, pools)]}, found {text}."
        )
    chained = itertools.chain.from_iterable
    addresses = dict(zip(chained(pools), chained(hosts), strict=True))
    place = spec["task"]
    task = pools[int(place["type"].removeprefix(_POOL))][int(place["index"])]
    # TensorFlow expects the addresses in the order of their indices.
    return {
        TF_CONFIG: make_tf_config(task, {each: addresses[each] for each in tasks(distribution)})
    }


def _pool(distribution: Distribution, options: VertexOptions, task: Task) -> dict[str, Any]:
    machine: dict[str, Any] = {"machine_type": options.machine_type}
    if gpus := gpus_of(distribution, task):
        machine |= {"accelerator_type": distribution.gpu_type, "accelerator_count": gpus}
    return {
        "machine_spec": machine,
        "container_spec": {"image_uri": options.image, "env": variables(distribution)},
    }


def _merged(ours: Any, theirs: Any) -> Any:
    """Returns ours, changed by theirs: objects field by field, pools one by one, `env` added."""
    if theirs is None:
        return ours
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        changed = {
            name: [*ours.get(name, ()), *value] if name == "env" else _merged(ours.get(name), value)
            for name, value in theirs.items()
        }
        return {**ours, **changed}
    if isinstance(ours, list) and isinstance(theirs, Sequence):
        return [_merged(*both) for both in itertools.zip_longest(ours, theirs)]
    return theirs
