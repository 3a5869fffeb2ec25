"""Which processors, GPUs and environment variables each worker gets."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence

from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers._distribution import Distribution
from generic_trainer.launchers._members import Member, tf_config_of

__all__ = ["common_environment", "own_environment", "own_processors"]

_logger = logging.getLogger(__name__)


def common_environment(distribution: Distribution) -> dict[str, str]:
    """Returns the environment that all workers have in common.

    Raises:
        ConfigurationError: a cluster is asked for by a process that belongs to one.
    """
    environment: dict[str, str] = {
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        **os.environ,
        "TF_GRPC_REUSE_PORT": "1",
        **distribution.env,
    }
    if distribution.is_cluster and "TF_CONFIG" in environment:
        raise ConfigurationError(
            f"launcher='local' is to start {distribution.num_processes} processes, but this one is "
            "part of a cluster already: TF_CONFIG is set. Use launcher='in_process' there, or "
            "unset TF_CONFIG."
        )
    return environment


def own_environment(
    distribution: Distribution, member: Member, addresses: Mapping[Member, str], gpus: Sequence[str]
) -> dict[str, str]:
    """Returns all environment variables of one worker.

    Args:
        distribution: what was asked for.
        member: the worker.
        addresses: see `tf_config_of`.
        gpus: the GPUs of this machine.

    Raises:
        ConfigurationError: there are not enough GPUs.
    """
    own = common_environment(distribution)
    if distribution.is_cluster:
        own["TF_CONFIG"] = tf_config_of(member, addresses)
    if distribution.gpus_per_worker is not None:
        own["CUDA_VISIBLE_DEVICES"] = _own_gpus(distribution, member, addresses, gpus)
    return own


def own_processors(distribution: Distribution, number: int) -> list[int]:
    """Returns the processors that a worker shall keep to; none if it may use all.

    Args:
        distribution: what was asked for.
        number: the worker's place among all.
    """
    if distribution.cpus_per_worker is None or not hasattr(os, "sched_setaffinity"):
        return []
    each = max(1, round(distribution.cpus_per_worker))
    available = sorted(os.sched_getaffinity(0))
    if each * distribution.num_processes > len(available):
        if number == 0:
            _logger.warning(
                "cpus_per_worker=%g is not kept to: %d processes share the %d processors there are",
                distribution.cpus_per_worker,
                distribution.num_processes,
                len(available),
            )
        return []
    return available[number * each : (number + 1) * each]


def _own_gpus(
    distribution: Distribution, member: Member, addresses: Mapping[Member, str], gpus: Sequence[str]
) -> str:
    each = int(distribution.gpus_per_worker or 0)
    # Parameter servers, and a chief that only sends orders, have no use for any.
    if not each or (distribution.parameter_servers and member.task != "worker"):
        return "-1"
    trainers = [
        one for one in addresses if one.task == "worker" or not distribution.parameter_servers
    ]
    if each * len(trainers) > len(gpus):
        raise ConfigurationError(
            f"gpus_per_worker={each}: {len(trainers)} workers need {each * len(trainers)} GPUs, "
            f"but this machine has {len(gpus)}. Use fewer workers, or launcher='ray' with a "
            "cluster that has more."
        )
    start = trainers.index(member) * each
    return ",".join(gpus[start : start + each])
