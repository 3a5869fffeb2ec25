"""Connection to a Ray cluster that answers, or to a Ray of our own with room for the workers."""

import contextlib
import functools
import logging
import os
import secrets
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import grpc

from generic_trainer._core.machine import MIB
from generic_trainer._core.scratch import ScratchFolder, private_folder
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers._distribution import Distribution, needed_client

# Almost nothing is kept there: our data are files. Ray refuses less than 75 MiB.
_OBJECT_STORE_BYTES = 100 * MIB
# The path of a Unix socket below it must fit into 107 characters, of which Ray takes 64.
_LONGEST_TEMP_DIR = 107 - 64 - len("/rayxxxxxxxx")
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # A worker that reserves no GPU sees all of them, as without Ray and in later releases of it.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_NO_COLORS = {"RAY_COLOR_PREFIX": "0"}  # in the log
_AUTH_MODE = "RAY_AUTH_MODE"
_CLIENT_PREFIX = "ray://"
_ANSWER_S = 20.0
_PLACEMENT_S = 300.0

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def connected(distribution: Distribution) -> Iterator[Any]:
    """Yields the module `ray`, connected; sets variables of this process for good.

    Without an address, a Ray of this machine is started: no dashboard, no usage reports, and room
    for all workers. If it fails to start, its processes end with this one.

    Raises:
        ConfigurationError: Ray is not installed; there is no cluster at the address, or its
            versions of Ray and Python are others; this machine has no room for the workers.
    """
    options = distribution.options
    os.environ.update(_NO_COLORS)
    runtime_env = dict(options.runtime_env)
    with contextlib.ExitStack() as stack:
        if options.address is None:
            arguments = _own_ray(distribution, stack)
        else:
            check_reachable(options.address, options.connect_timeout_s or _ANSWER_S)
            arguments = {"address": options.address}
            if options.address.startswith(_CLIENT_PREFIX):  # a process there prints the lines
                variables = {**_NO_COLORS, **runtime_env.get("env_vars", {})}
                runtime_env["env_vars"] = variables
        with needed_client("ray", "'ray[client]'", "ray"):
            import ray
        stack.callback(ray.shutdown)
        where = "this machine" if options.address is None else f"the cluster at {options.address}"
        _logger.info("Connecting to Ray on %s", where)
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(
                **arguments,
                log_to_driver=True,
                logging_level=logging.WARNING,
                runtime_env=runtime_env or None,
            )
        except Exception as error:  # plain ones among them
            raise ConfigurationError(f"Ray cannot be used on {where}: {error}") from error
        finally:
            signal.signal(signal.SIGTERM, handler)  # Ray has a handler of its own
        # A Ray of our own never gets more resources; a cluster may grow.
        total = ray.cluster_resources()
        if options.address is None and room_for(distribution, total) < distribution.min_processes:
            raise ConfigurationError(no_room(distribution, total))
        yield ray


def check_reachable(address: str, timeout_s: float) -> None:
    """Waits until something that speaks gRPC, as Ray does, answers at the address of a cluster.

    `ray.init` itself tries for minutes if nothing answers, or another program.

    Args:
        address: `"ray://host:port"`, `"host:port"`, or `"auto"`, which `ray.init` looks up at once.
        timeout_s: how long to try, in seconds.

    Raises:
        ConfigurationError: no such server answers, or it is not an address.
    """
    host, _, port = address.removeprefix(_CLIENT_PREFIX).rpartition(":")
    if address == "auto" or os.environ.get("RAY_USE_TLS") in ("1", "true"):
        return
    if not host or not port.isdigit() or "/" in host:
        raise ConfigurationError(
            "The address of a Ray cluster must be 'auto', 'ray://host:10001' or 'host:6379', "
            f"but got {address!r}."
        )
    channel = grpc.insecure_channel(f"{host}:{port}", [("grpc.max_reconnect_backoff_ms", 1000)])
    try:
        grpc.channel_ready_future(channel).result(timeout_s)
    except grpc.FutureTimeoutError as error:
        raise ConfigurationError(
            f"No Ray cluster answers at {address} within connect_timeout_s={timeout_s:g}. Expected "
            "the head node's address: ray://HOST:10001 from outside the cluster (with KubeRay, the "
            "service CLUSTER-head-svc), HOST:6379 or auto from one of its nodes. See that it runs "
            "(ray status) and that the port is open; RayOptions(connect_timeout_s=...) waits for "
            "one that is still to come."
        ) from error
    finally:
        channel.close()


def placement_timeout_s(distribution: Distribution) -> float:
    """Returns how long the workers may take to be placed, in seconds."""
    return distribution.options.connect_timeout_s or _PLACEMENT_S


def resources_per_worker(distribution: Distribution) -> dict[str, float]:
    """Returns Ray's name of a resource → amount that every worker reserves.

    All tasks are alike: a parameter server reserves what a worker does.
    """
    gpus = distribution.gpus_per_worker
    asked = {
        "CPU": 1.0 if distribution.cpus_per_worker is None else distribution.cpus_per_worker,
        "GPU": float(distribution.require_gpu) if gpus is None else gpus,
        "memory": (distribution.memory_mb_per_worker or 0) * MIB,
    }
    return {name: amount for name, amount in asked.items() if amount}


def room_for(distribution: Distribution, total: Mapping[str, float]) -> int:
    """Returns how many tasks some resources suffice for, wherever they are in the cluster."""
    asked = resources_per_worker(distribution)
    return int(min(total.get(name, 0.0) // amount for name, amount in asked.items()))


def no_room(
    distribution: Distribution, total: Mapping[str, float], waited_s: float | None = None
) -> str:
    """Returns the message for workers that cannot be placed.

    Args:
        distribution: the requested workers.
        total: Ray's name of a resource → amount in the cluster.
        waited_s: the time limit, in seconds; None if the amount cannot change.
    """
    asked = resources_per_worker(distribution)
    waited = "" if waited_s is None else f" within {waited_s:g} s"
    return (
        f"The workers could not be placed{waited}. Expected room for "
        f"{distribution.min_processes} x ({_listed(asked)}), found a cluster with "
        f"{_listed({name: total.get(name, 0.0) for name in asked})} in all, perhaps in use or "
        "scattered over its nodes. Ask for fewer or smaller workers, add nodes, or give an "
        "autoscaler more time with RayOptions(connect_timeout_s=...)."
    )


def _own_ray(distribution: Distribution, stack: contextlib.ExitStack) -> dict[str, Any]:
    """Returns the arguments with which `ray.init` starts a Ray for this run alone."""
    cpus = os.cpu_count() or 1
    if distribution.cpus_per_worker is None:  # they share the processors
        cpus = max(cpus, distribution.num_processes)
    parent = private_folder()
    if len(parent) > _LONGEST_TEMP_DIR:
        parent = private_folder("/tmp")
    os.environ.update({**_ENVIRONMENT, **_own_token()})
    return {
        "address": "local",
        "num_cpus": cpus,
        "object_store_memory": _OBJECT_STORE_BYTES,
        "include_dashboard": False,
        "_temp_dir": stack.enter_context(ScratchFolder("ray", parent)),
    }


@functools.cache
def _own_token() -> dict[str, str]:
    """Returns settings with which a Ray of our own serves only processes that have a secret token.

    Its servers listen on every address of the machine, and run any code that they receive. Ray
    reads the settings once in a process, when it is imported.
    """
    if _AUTH_MODE in os.environ:  # the user's own choice
        return {}
    return {_AUTH_MODE: "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def _listed(amounts: Mapping[str, float]) -> str:
    return ", ".join(
        f"{amount / MIB:.0f} MiB of memory" if name == "memory" else f"{amount:g} {name}"
        for name, amount in amounts.items()
    )
