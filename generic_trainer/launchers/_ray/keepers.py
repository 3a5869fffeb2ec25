"""Keepers of what is to outlive Ray's workers on a node: a process that has imported TensorFlow.

Ray Train replaces all of its workers when one is lost. What trains in them is forked from a process
of a keeper's, so that the new workers import nothing again. The keeper is the director itself on
its own node, else an actor without resources that belongs to it: all ends with the director.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from generic_trainer._core.forkserver import Lender

# How long a keeper may take to start; without one a worker imports by itself.
_START_TIMEOUT_S = 60.0
_LENDER_ON = f"{__name__}:lender_on"

_lock = threading.Lock()
_keepers: dict[str, Any] = {}  # by the node; those of other nodes than this process's
_lender = functools.cache(Lender)


class Keeper:
    """Actor that lends fork servers on a node."""

    def address(self) -> str:
        """Returns where they are lent."""
        return _lender().address


def ask_for_lender(director: Any) -> str:
    """Returns the address of the lender on this worker's node.

    Args:
        director: the actor that the job's keepers belong to.

    Raises:
        ConnectionError: there is none.
    """
    try:
        node = ray.get_runtime_context().get_node_id()
        address: str = ray.get(director.call.remote(_LENDER_ON, node))
        return address
    except RayError as error:
        raise ConnectionError(f"no process lends on this node: {error}") from error


def lender_on(node: str) -> str:
    """Returns the address of the lender on a node, which is started where there is none.

    Raises:
        RayError: it is lost, or does not start in time; the next call tries again.
    """
    with _lock:
        if node == ray.get_runtime_context().get_node_id():
            return _lender().address
        if node not in _keepers:
            here = NodeAffinitySchedulingStrategy(node, soft=False)
            actor = ray.remote(num_cpus=0, scheduling_strategy=here)(Keeper)
            _keepers[node] = actor.remote()
        keeper = _keepers[node]
    try:
        address: str = ray.get(keeper.address.remote(), timeout=_START_TIMEOUT_S)
        return address
    except RayError:
        with _lock:
            if _keepers.get(node) is keeper:
                del _keepers[node]  # who has no reference to an actor ends it
        raise
