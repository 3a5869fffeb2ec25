"""Pods of workers: their template, as Kubernetes' core v1 has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from generic_trainer._core.cluster import Task
from generic_trainer.launchers._distribution import Distribution
from generic_trainer.launchers._options import KubernetesOptions

_PROGRAM = "generic_trainer.launchers._remote.program"
# What a pod may take beyond `preemption_grace_s` to write down how it ended.
_LAST_WORDS_S = 10


def options_of(distribution: Distribution) -> KubernetesOptions:
    """Returns the options of the launcher that makes the pods."""
    options = distribution.tfjob if distribution.launcher == "tfjob" else distribution.trainjob
    return options or KubernetesOptions()


def pod_template(
    distribution: Distribution,
    task: Task,
    arguments: Sequence[str],
    *,
    container_name: str,
    env: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Returns the template of the pods of a type of tasks.

    Args:
        distribution: what was asked for, with the workers' environment in `env`.
        task: one of them.
        arguments: of the program; see `_remote.program`.
        container_name: what the operator expects the container to be called.
        env: further variables.
    """
    options = options_of(distribution)
    given = [{"name": name, "value": value} for name, value in distribution.env.items()]
    container: dict[str, Any] = {
        "name": container_name,
        "image": options.image,
        "command": ["python", "-m", _PROGRAM, *arguments],
        "env": [*given, *env],
        "resources": _resources(distribution, task),
        "volumeMounts": [
            {"name": f"volume-{number}", "mountPath": path}
            for number, path in enumerate(options.volumes.values())
        ],
    }
    spec: dict[str, Any] = {
        "containers": [container],
        "nodeSelector": dict(options.node_selector),
        "terminationGracePeriodSeconds": math.ceil(distribution.preemption_grace_s) + _LAST_WORDS_S,
        "volumes": [
            {"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": claim}}
            for number, claim in enumerate(options.volumes)
        ],
    }
    if options.service_account is not None:
        spec["serviceAccountName"] = options.service_account
    # Istio's sidecar, which Kubeflow's namespaces inject, would outlive the training.
    annotations = {"sidecar.istio.io/inject": "false"}
    return {"metadata": {"labels": dict(options.labels), "annotations": annotations}, "spec": spec}


def _resources(distribution: Distribution, task: Task) -> dict[str, dict[str, str]]:
    """Memory is both asked for and limited; GPUs can only be limited."""
    requests, limits = {}, {}
    if distribution.cpus_per_worker is not None:
        requests["cpu"] = f"{distribution.cpus_per_worker:g}"
    if distribution.memory_mb_per_worker is not None:
        requests["memory"] = limits["memory"] = f"{math.ceil(distribution.memory_mb_per_worker)}Mi"
    gpus = distribution.gpus_per_worker
    gpus = int(distribution.require_gpu) if gpus is None else int(gpus)
    # Parameter servers, and a chief that only sends orders, have no use for any.
    if gpus and (task.type == "worker" or not distribution.parameter_servers):
        limits[distribution.gpu_type] = str(gpus)
    return {"requests": requests, "limits": limits}
