"""The connection to a Ray cluster, or a Ray of our own."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import generic_trainer
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers._distribution import Distribution
from generic_trainer.launchers._options import RayOptions
from generic_trainer.launchers.ray._reachable import check_reachable
from generic_trainer.launchers.ray._resources import missing_resources, no_room

__all__ = ["connected"]

# Ray Train keeps next to nothing there: our data goes by files. Ray refuses less than 75 MiB.
_OBJECT_STORE_BYTES = 100 << 20
# The path of a Unix socket below it must fit into 107 characters.
_LONGEST_TEMP_DIR = 30
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Who reserves no GPU sees all of them, as without Ray; so it will be in later versions of Ray.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def connected(distribution: Distribution) -> Iterator[Any]:
    """Yields the module `ray`, connected; what was started here is gone afterwards.

    1. A process that is connected already, as a notebook may be, uses that connection and keeps it.
    2. Without an address, a Ray of this machine is started: no dashboard, no usage reports, and
       room for all workers.

    Raises:
        ConfigurationError: Ray is not installed; there is no cluster at the address, or its
            versions of Ray and Python are others; this machine has no room for the workers.
    """
    ray = _import_ray()
    if ray.is_initialized():
        yield ray
        return
    options = distribution.ray or RayOptions()
    is_own = options.address is None
    with (
        _environment(RAY_COLOR_PREFIX="0"),
        _started(distribution) if is_own else _joined(options) as arguments,
    ):
        try:
            _init(ray, options, arguments)
            if is_own:  # what it does not have it never will; a cluster may grow
                _check_room(distribution, ray.cluster_resources())
            yield ray
        finally:
            ray.shutdown()


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
            f"pip install generic-trainer[ray] ({error})."
        ) from error


@contextlib.contextmanager
def _started(distribution: Distribution) -> Iterator[dict[str, Any]]:
    cpus = os.cpu_count() or 1
    if distribution.cpus_per_worker is None:  # they share what there is
        cpus = max(cpus, distribution.num_processes)
    place = tempfile.gettempdir()
    place = place if len(place) <= _LONGEST_TEMP_DIR else "/tmp"
    temp_dir = tempfile.mkdtemp(prefix="ray-", dir=place)
    _logger.info("Starting Ray on this machine, with %d CPUs", cpus)
    try:
        with _environment(**_ENVIRONMENT, **_own_path()):
            yield {
                "address": "local",
                "num_cpus": cpus,
                "object_store_memory": _OBJECT_STORE_BYTES,
                "include_dashboard": False,
                "_temp_dir": temp_dir,
            }
    finally:
        shutil.rmtree(temp_dir, ignore_errors=True)


def _own_path() -> dict[str, str]:
    """Lets the workers find this package where it is not installed, as in a checkout."""
    place = str(Path(generic_trainer.__file__).parent.parent)
    if place in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [place, os.environ.get("PYTHONPATH")]))}


@contextlib.contextmanager
def _joined(options: RayOptions) -> Iterator[dict[str, Any]]:
    assert options.address is not None
    check_reachable(options.address, options.connect_timeout_s)
    _logger.info("Connecting to the Ray cluster at %s", options.address)
    yield {"address": options.address}


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
