"""Connection to a Ray cluster that answers, or to a Ray of our own with room for the workers."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import signal
import socket
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import generic_trainer
from generic_trainer._core import internals
from generic_trainer._core.machine import MIB, processes_that_name
from generic_trainer._core.scratch import ScratchFolder, private_folder
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers._distribution import Distribution
from generic_trainer.launchers._options import RayOptions

# Ray Train keeps next to nothing there: our data goes by files. Ray refuses less than 75 MiB.
_OBJECT_STORE_BYTES = 100 * MIB
# The path of a Unix socket below it must fit into 107 characters, of which Ray takes 64.
_LONGEST_TEMP_DIR = 107 - 64 - len("/rayxxxxxxxx")
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Who reserves no GPU sees all of them, as without Ray; so it will be in later versions of Ray.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_AUTH_MODE = "RAY_AUTH_MODE"
_CLIENT_PREFIX = "ray://"
_ANSWER_S, _PLACEMENT_S = 20.0, 300.0
_RETRY_S = 1.0
# With this a client of HTTP/2, and so of gRPC, begins: the preface, and an empty frame of type
# SETTINGS, which is what the server begins with (RFC 9113, section 3.4).
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_HTTP2_HEAD_BYTES, _HTTP2_SETTINGS = 9, 4
# How long what Ray has started may take to end with its servers.
_KILL_S = 5.0
# Where `ray start` on this machine says which cluster it belongs to.
_CURRENT_CLUSTER = Path("/tmp/ray/ray_current_cluster")

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def connected(distribution: Distribution) -> Iterator[Any]:
    """Yields the module `ray`, connected; what was started here is gone afterwards.

    1. A process that is connected already, as a notebook may be, uses that connection and keeps it.
    2. Without an address, a Ray of this machine is started: no dashboard, no usage reports, and
       room for all workers. Should it fail to start, what it has started already is killed.

    Raises:
        ConfigurationError: Ray is not installed; there is no cluster at the address, or its
            versions of Ray and Python are others; this machine has no room for the workers.
    """
    ray = _import_ray()
    if ray.is_initialized():
        yield ray
        return
    options = distribution.ray or RayOptions()
    with (
        _environment(RAY_COLOR_PREFIX="0"),
        _joined(options.address, _or_default(options.connect_timeout_s, _ANSWER_S))
        if options.address is not None
        else _started(distribution) as arguments,
    ):
        try:
            _init(ray, options, arguments)
            if options.address is None:  # what it does not have it never will; a cluster may grow
                _check_room(distribution, ray.cluster_resources())
            yield ray
        finally:
            ray.shutdown()


def check_reachable(
    address: str,
    timeout_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Waits until something that speaks gRPC, as Ray does, answers at the address of a cluster.

    `ray.init` itself tries for minutes where nothing answers, or something else.

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
            _greet(host, port, min(remaining_s, timeout_s))
            return
        except OSError as error:
            if clock() + _RETRY_S > deadline_s:
                raise ConfigurationError(
                    f"No Ray cluster answers at {where} within connect_timeout_s={timeout_s:g}: "
                    f"{error}. Expected the head node's address: ray://HOST:10001 from outside "
                    "the cluster (with KubeRay, the service CLUSTER-head-svc), HOST:6379 or auto "
                    "from one of its nodes. See that it runs (ray status) and that the port is "
                    "open; RayOptions(connect_timeout_s=...) waits for one that is still to come."
                ) from error
        sleep(_RETRY_S)


def placement_timeout_s(options: RayOptions) -> float:
    """Returns how long the workers may take to be placed, in seconds."""
    return _or_default(options.connect_timeout_s, _PLACEMENT_S)


def resources_per_worker(distribution: Distribution) -> dict[str, float]:
    """Returns Ray's name of a resource → how much of it every worker reserves.

    Ray Train's workers are all alike: a parameter server reserves what a worker does.
    """
    gpus = distribution.gpus_per_worker
    asked = {
        "CPU": 1.0 if distribution.cpus_per_worker is None else distribution.cpus_per_worker,
        "GPU": float(distribution.require_gpu) if gpus is None else gpus,
        "memory": (distribution.memory_mb_per_worker or 0) * MIB,
    }
    return {name: amount for name, amount in asked.items() if amount}


def scaling(distribution: Distribution) -> dict[str, Any]:
    """Returns the arguments of Ray Train's `ScalingConfig`."""
    resources = resources_per_worker(distribution)
    arguments: dict[str, Any] = {
        "num_workers": distribution.num_processes,
        "use_gpu": resources.get("GPU", 0) > 0,
        "resources_per_worker": resources,
    }
    if isinstance(distribution.num_workers, tuple):
        arguments["num_workers"] = distribution.num_workers
        options = distribution.ray or RayOptions()
        if options.resize_interval_s is not None:
            arguments["elastic_resize_monitor_interval_s"] = options.resize_interval_s
    return arguments


def missing_resources(distribution: Distribution, total: Mapping[str, float]) -> list[str]:
    """Returns the names of the resources of which a cluster has too little for all workers."""
    asked = resources_per_worker(distribution)
    count = distribution.num_processes - distribution.max_workers + distribution.min_workers
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
    count = distribution.num_processes - distribution.max_workers + distribution.min_workers
    return (
        f"The workers could not be placed{waited}. Expected room for "
        f"{count} x ({_listed(asked)}), found a cluster with "
        f"{_listed({name: total.get(name, 0.0) for name in asked})} in all, perhaps in use or "
        "scattered over its nodes. Ask for fewer or smaller workers, add nodes, or give an "
        "autoscaler more time with RayOptions(connect_timeout_s=...)."
    )


def give_back(ray: Any, room: str) -> None:
    """Frees what is reserved under a name; Ray itself does so when the driver ends, not before."""
    with contextlib.suppress(ValueError):  # there is nothing
        ray.util.remove_placement_group(ray.util.get_placement_group(room))


def _init(ray: Any, options: RayOptions, arguments: Mapping[str, Any]) -> None:
    try:
        ray.init(
            **arguments,
            log_to_driver=True,
            logging_level=logging.WARNING,
            runtime_env=dict(options.runtime_env) or None,
        )
    except Exception as error:  # plain ones among them
        where = "this machine" if options.address is None else f"the cluster at {options.address}"
        raise ConfigurationError(f"Ray cannot be used on {where}: {error}") from error


def _greet(host: str, port: int, timeout_s: float) -> None:
    """Looks whether a server of HTTP/2 is there; proxies accept connections without one.

    Raises:
        OSError: there is none.
    """
    with socket.create_connection((host, port), timeout_s) as connection:
        if os.environ.get("RAY_USE_TLS") in ("1", "true"):  # it waits for another greeting
            return
        connection.settimeout(timeout_s)
        connection.sendall(_HTTP2_PREFACE)
        head = connection.recv(_HTTP2_HEAD_BYTES, socket.MSG_WAITALL)
    if len(head) < _HTTP2_HEAD_BYTES or head[3] != _HTTP2_SETTINGS:
        raise OSError(f"what listens there does not speak gRPC, it says {head!r}")


def _or_default(timeout_s: float | None, default_s: float) -> float:
    return default_s if timeout_s is None else timeout_s


def _check_room(distribution: Distribution, total: Mapping[str, float]) -> None:
    if missing_resources(distribution, total):
        raise ConfigurationError(no_room(distribution, total))


def _import_ray() -> Any:
    try:
        importlib.import_module("ray.train")
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigurationError(
            "launcher='ray' needs Ray Train, which is not installed here: "
            f"pip install 'ray[train]', or GenericTrainer's extra `ray` ({error})."
        ) from error


@contextlib.contextmanager
def _started(distribution: Distribution) -> Iterator[dict[str, Any]]:
    cpus = os.cpu_count() or 1
    if distribution.cpus_per_worker is None:  # they share what there is
        cpus = max(cpus, distribution.num_processes)
    parent = private_folder()
    if len(parent) > _LONGEST_TEMP_DIR:
        parent = private_folder("/tmp")
    _logger.info("Starting Ray on this machine, with %d CPUs", cpus)
    with (
        ScratchFolder("ray", parent) as temp_dir,
        _environment(**_ENVIRONMENT, **_own_path()),
        _own_token(),
    ):
        try:
            yield {
                "address": "local",
                "num_cpus": cpus,
                "object_store_memory": _OBJECT_STORE_BYTES,
                "include_dashboard": False,
                "_temp_dir": temp_dir,
            }
        finally:
            _kill_all(temp_dir)


@contextlib.contextmanager
def _own_token() -> Iterator[None]:
    """Has the Ray that is started here serve nobody who does not know a secret of this process.

    Its servers listen on every address of the machine, and run whatever they are sent.
    """
    if _AUTH_MODE in os.environ:  # the user's own choice
        yield
        return
    try:
        with _environment(**{_AUTH_MODE: "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}):
            _reread_token()
            yield
    finally:
        _reread_token()


def _reread_token() -> None:
    """Has Ray look into the environment again; before release 2.52 it knew no tokens."""
    with contextlib.suppress(ConfigurationError):
        internals.RAY_TOKEN_LOADER.get().instance().reset_cache()
        internals.RAY_CONFIG.get().initialize("")


def _kill_all(temp_dir: str) -> None:
    """Kills what runs with a folder: where `ray.init` fails, `ray.shutdown` knows of nothing."""
    end_s = time.monotonic() + _KILL_S
    while (pids := processes_that_name(temp_dir)) and time.monotonic() < end_s:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # it may be a child of a child
                os.waitpid(pid, 0)


def _own_path() -> dict[str, str]:
    """Lets the workers find this package where it is not installed, as in a checkout."""
    folder = str(Path(generic_trainer.__file__).parent.parent)
    if folder in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))}


@contextlib.contextmanager
def _joined(address: str, timeout_s: float) -> Iterator[dict[str, Any]]:
    check_reachable(address, timeout_s)
    _logger.info("Connecting to the Ray cluster at %s", address)
    yield {"address": address}


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Sets environment variables for as long as the context is open."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


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


def _listed(amounts: Mapping[str, float]) -> str:
    return ", ".join(_shown(name, amount) for name, amount in amounts.items())


def _shown(name: str, amount: float) -> str:
    if name == "memory":
        return f"{amount / MIB:.0f} MiB of memory"
    return f"{amount:g} {name}{'' if amount == 1 else 's'}"
