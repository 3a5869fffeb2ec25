"""A Ray cluster of two machines, which are two nodes on this one."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["two_nodes"]

ROOT = Path(__file__).parent.parent.parent
_STORE_BYTES = 100 << 20


@contextlib.contextmanager
def two_nodes(**node: Any) -> Iterator[Any]:
    """Yields the cluster, connected to this process; each node has one CPU unless `node` says so.

    The nodes inherit the environment, as the pods of one image do.
    """
    import ray

    before = dict(os.environ)
    # Ray notes the address of a cluster there, and expects the folder on a machine of its own.
    os.makedirs("/tmp/ray", exist_ok=True)
    # Short, as Unix sockets lie below it.
    temp_dir = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    os.environ.update(
        PYTHONPATH=os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        RAY_USAGE_STATS_ENABLED="0",
        RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
        RAY_COLOR_PREFIX="0",
    )
    cluster = _started(temp_dir, {"num_cpus": 1, "object_store_memory": _STORE_BYTES, **node})
    try:
        ray.init(address=cluster.address, log_to_driver=True)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(temp_dir, ignore_errors=True)
        os.environ.clear()
        os.environ.update(before)


def _started(temp_dir: str, node: dict[str, Any]) -> Any:
    """Returns the cluster; a busy machine may need longer for a node than the 30 s Ray waits."""
    from ray.cluster_utils import Cluster

    head = {**node, "include_dashboard": False, "temp_dir": temp_dir}
    for tries_left in reversed(range(3)):
        cluster = Cluster()
        try:
            cluster.add_node(**head)
            cluster.add_node(**node)
            return cluster
        except Exception as error:
            cluster.shutdown()
            if not tries_left or "timed out during startup" not in str(error):
                raise
    raise AssertionError("the last try returns or raises")
