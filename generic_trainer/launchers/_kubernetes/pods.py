"""Pods of workers, as Kubernetes' core v1 defines them: their template and their state."""

import math
from collections.abc import Sequence
from typing import Any

from generic_trainer._core.cluster import Task
from generic_trainer.launchers._distribution import Distribution
from generic_trainer.launchers._options import KubernetesOptions
from generic_trainer.launchers._remote.service import (
    PROGRAM,
    TaskStatus,
    gpus_of,
    literal,
    variables,
)

# What a pod may take beyond `preemption_grace_s` to write down how it ended.
_LAST_WORDS_S = 10
# Reasons for which a container has not started and never will.
_STUCK = (
    "ContainerCannotRun",
    "CreateContainerConfigError",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "StartError",
)
_PHASES: Any = {"Running": "running", "Succeeded": "succeeded", "Failed": "failed"}


def options_of(distribution: Distribution) -> KubernetesOptions:
    """Returns the options of the launcher that makes the pods."""
    options: KubernetesOptions = getattr(distribution, distribution.launcher)
    return options


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
        distribution: the distribution, with the workers' environment in `env`.
        task: one of the tasks.
        arguments: of the program; see `_remote.program`.
        container_name: the operator's name of the container.
        env: further variables.
    """
    options = options_of(distribution)
    container: dict[str, Any] = {
        "name": container_name,
        "image": options.image,
        "command": ["python", "-m", PROGRAM, *map(literal, arguments)],
        "env": [*variables(distribution), *env],
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


def status_of_pod(pod: Any, container: str) -> TaskStatus:
    """Returns the state of a pod.

    The reason of the pod, such as an eviction or a preemption, precedes that of its container,
    whose exit code only follows from it.
    """
    status = cause = pod.status
    phase, exit_code = _PHASES.get(status.phase, "waiting"), None
    conditions = {(one.type, one.status): one for one in status.conditions or ()}
    disruption = conditions.get(("DisruptionTarget", "True"))
    own = [one.state for one in status.container_statuses or () if one.name == container]
    of_container = next(filter(None, (state.terminated or state.waiting for state in own)), None)
    if phase == "failed" and (status.reason or disruption is not None):
        cause = status if status.reason else disruption
    elif of_container is not None:
        cause, exit_code = of_container, getattr(of_container, "exit_code", None)
        phase = "stuck" if cause.reason in _STUCK else phase
    else:
        cause = conditions.get(("PodScheduled", "False"), status)
    name, reason, message = pod.metadata.name, cause.reason or "", cause.message or ""
    return TaskStatus(name, phase, exit_code, reason, message)


def _resources(distribution: Distribution, task: Task) -> dict[str, dict[str, str]]:
    """Returns requests and limits; GPUs can only be limited."""
    requests, limits = {}, {}
    if distribution.cpus_per_worker is not None:
        requests["cpu"] = f"{distribution.cpus_per_worker:g}"
    if distribution.memory_mb_per_worker is not None:
        requests["memory"] = limits["memory"] = f"{math.ceil(distribution.memory_mb_per_worker)}Mi"
    if gpus := gpus_of(distribution, task):
        limits[distribution.gpu_type] = str(gpus)
    return {"requests": requests, "limits": limits}
