"""Program of a replica: `python -m generic_trainer.launchers._vertex.program FOLDER DIGEST`."""

from __future__ import annotations

import json
import os
import sys

from generic_trainer._core.cluster import TF_CONFIG, make_tf_config
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers._distribution import Distribution, tasks
from generic_trainer.launchers._remote.program import run
from generic_trainer.launchers._vertex.custom_job import pools_of

CLUSTER_SPEC = "CLUSTER_SPEC"
_POOL = "workerpool"


def set_own_tf_config(distribution: Distribution) -> None:
    """Replaces the `TF_CONFIG` of Vertex AI, which has other types of tasks."""
    os.environ.pop(TF_CONFIG, None)
    if (config := tf_config(distribution)) is not None:
        os.environ[TF_CONFIG] = config


def tf_config(distribution: Distribution) -> str | None:
    """Returns the `TF_CONFIG` of this replica, from its `CLUSTER_SPEC`; None where it is alone.

    Raises:
        ConfigurationError: the replicas are not those of the distribution.
    """
    text = os.environ.get(CLUSTER_SPEC)
    if not distribution.is_cluster or not text:
        return None
    spec = json.loads(text)
    pools = pools_of(distribution)
    hosts = [spec["cluster"].get(f"{_POOL}{number}", []) for number in range(len(pools))]
    if [*map(len, hosts)] != [*map(len, pools)]:
        raise ConfigurationError(
            f"{CLUSTER_SPEC}: expected pools of the sizes {[*map(len, pools)]}, found {text}."
        )
    addresses = {
        task: host
        for pool, names in zip(pools, hosts, strict=True)
        for task, host in zip(pool, names, strict=True)
    }
    pool = pools[int(spec["task"]["type"].removeprefix(_POOL))]
    # In the order of their indices, as TensorFlow wants them.
    ordered = {task: addresses[task] for task in tasks(distribution)}
    return make_tf_config(pool[int(spec["task"]["index"])], ordered)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], set_up=set_own_tf_config, publishes_log=True))
