"""Manifest of a TFJob, as Kubernetes wants to read it.

The fields are those of the custom resource definition `tfjobs.kubeflow.org` (v1) of Kubeflow's
training operator 1.x, and of the pod template of Kubernetes' core v1.
"""

from __future__ import annotations

import math
from typing import Any

from generic_trainer._core.cluster import Task
from generic_trainer.launchers._distribution import Distribution, TFJobOptions, tasks

GROUP, VERSION, PLURAL = "kubeflow.org", "v1", "tfjobs"
JOB_NAME_LABEL = "training.kubeflow.org/job-name"
# The operator sets TF_CONFIG in the container of this name.
CONTAINER = "tensorflow"
_REPLICA_TYPES = {"chief": "Chief", "worker": "Worker", "ps": "PS"}
_POD_MODULE = f"{__package__}.pod"
# What a pod may take beyond `preemption_grace_s` to write down how it ended.
_LAST_WORDS_S = 10


def manifest(distribution: Distribution, name: str, folder: str, digest: str) -> dict[str, Any]:
    """Returns the TFJob for a distribution.

    Args:
        distribution: what was asked for, with the workers' environment in `env`.
        name: of the TFJob.
        folder: of the job, on the pipeline root.
        digest: of the job; see `JobFolder`.
    """
    options = distribution.tfjob or TFJobOptions()
    of_type: dict[str, list[Task]] = {}
    for task in tasks(distribution):
        of_type.setdefault(task.type, []).append(task)
    run_policy: dict[str, Any] = {"cleanPodPolicy": "Running", "backoffLimit": 0}
    if distribution.timeout_s is not None:  # for when nobody is left to stop it
        run_policy["activeDeadlineSeconds"] = math.ceil(distribution.timeout_s)
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TFJob",
        "metadata": {"name": name, "namespace": options.namespace, "labels": dict(options.labels)},
        "spec": {
            "runPolicy": run_policy,
            "tfReplicaSpecs": {
                _REPLICA_TYPES[name]: {
                    "replicas": len(ones),
                    "restartPolicy": "Never",
                    "template": _template(distribution, options, ones[0], [folder, digest]),
                }
                for name, ones in of_type.items()
            },
        },
    }


def pod_name(job_name: str, task: Task) -> str:
    """Returns the name that the operator gives to the pod of a task."""
    return f"{job_name}-{task.type}-{task.index}"


def _template(
    distribution: Distribution, options: TFJobOptions, task: Task, arguments: list[str]
) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": options.image,
        "command": ["python", "-m", _POD_MODULE, *arguments],
        "env": [{"name": name, "value": value} for name, value in distribution.env.items()],
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
