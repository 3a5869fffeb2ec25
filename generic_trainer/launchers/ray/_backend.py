"""Tells each of Ray Train's workers its place in the TensorFlow cluster.

Ray's own `TensorflowConfig` knows neither chiefs nor parameter servers, and importing it imports
TensorFlow three times in a row, in the driver, the controller and the workers.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from typing import Any

import ray
from ray.train.backend import Backend, BackendConfig

from generic_trainer.launchers._distribution import Distribution
from generic_trainer.launchers._members import members, tf_config_of

__all__ = ["ClusterConfig"]

# The port of this worker, kept from other programs until the worker ends. TensorFlow's server can
# bind to it because it asks for SO_REUSEPORT as well, where TF_GRPC_REUSE_PORT is set.
_reserved: list[socket.socket] = []


@dataclasses.dataclass
class ClusterConfig(BackendConfig):
    """The cluster of a distribution, whose member N is Ray Train's worker of rank N.

    Attributes:
        distribution: as JSON.
    """

    distribution: str

    @property
    def backend_cls(self) -> type[Backend]:
        """What Ray Train calls."""
        return _ClusterBackend


class _ClusterBackend(Backend):
    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        everyone = members(Distribution.from_json(backend_config.distribution))
        if len(everyone) == 1:
            return
        found = worker_group.execute(_reserve_address)
        addresses = dict(zip(everyone, found, strict=True))
        waits = [
            worker_group.execute_single_async(
                rank, _set_tf_config, value=tf_config_of(member, addresses)
            )
            for rank, member in enumerate(everyone)
        ]
        ray.get(waits)


def _reserve_address() -> str:
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("", 0))
    _reserved.append(reserved)
    return f"{ray.util.get_node_ip_address()}:{reserved.getsockname()[1]}"


def _set_tf_config(value: str) -> None:
    os.environ["TF_CONFIG"] = value
