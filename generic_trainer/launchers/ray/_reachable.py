"""Whether there is a Ray cluster at an address, in a time that somebody has chosen.

`ray.init` itself tries for more than ten minutes where nothing answers.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from generic_trainer.errors import ConfigurationError

__all__ = ["check_reachable"]

_CLIENT_PREFIX = "ray://"
_RETRY_S = 1.0
# Where `ray start` on this machine says which cluster it belongs to.
_CURRENT_CLUSTER = Path("/tmp/ray/ray_current_cluster")


def check_reachable(
    address: str,
    timeout_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Waits until something listens at the address of a cluster.

    Args:
        address: `"ray://host:port"`, `"host:port"`, or `"auto"` for the cluster of this machine.
        timeout_s: how long to try, in seconds.
        clock: tells the time in seconds.
        sleep: waits for a number of seconds.

    Raises:
        ConfigurationError: nothing answers there, or it is no address.
    """
    where = _cluster_of_this_machine() if address == "auto" else address
    host, port = _host_and_port(where)
    deadline_s = clock() + timeout_s
    while True:
        try:
            remaining_s = max(_RETRY_S, deadline_s - clock())
            socket.create_connection((host, port), min(remaining_s, timeout_s)).close()
            return
        except OSError as error:
            if clock() + _RETRY_S > deadline_s:
                raise ConfigurationError(
                    f"No Ray cluster answers at {where} within connect_timeout_s={timeout_s:g}: "
                    f"{error}. Expected the head node's address: ray://HOST:10001 from outside "
                    "the cluster (with KubeRay, the service CLUSTER-head-svc), HOST:6379 or auto "
                    "from one of its nodes. See that it runs (ray status) and that the port is "
                    "open."
                ) from error
        sleep(_RETRY_S)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix(_CLIENT_PREFIX).rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise ConfigurationError(
            "The address of a Ray cluster must be 'auto', 'ray://host:10001' or 'host:6379', "
            f"but got {address!r}."
        )
    return host.strip("[]"), int(port)


def _cluster_of_this_machine() -> str:
    address = os.environ.get("RAY_ADDRESS", "")
    if not address and _CURRENT_CLUSTER.exists():
        address = _CURRENT_CLUSTER.read_text().strip()
    if not address:
        raise ConfigurationError(
            "address='auto' means the Ray cluster that this machine belongs to, but it belongs to "
            "none: `ray start` was not called here, and RAY_ADDRESS is not set. Give the address, "
            "or leave it out to start Ray on this machine."
        )
    return address
