"""TFJob of Kubeflow's training operator 1.x.

The fields are those of the custom resource definition `tfjobs.kubeflow.org` (v1).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from generic_trainer._core.cluster import Task
from generic_trainer.launchers._distribution import Distribution, tasks
from generic_trainer.launchers._kubernetes.api import Kind
from generic_trainer.launchers._kubernetes.pods import options_of, pod_template
from generic_trainer.launchers._remote.service import JobStatus

TFJOB = Kind("TFJob", "kubeflow.org", "v1", "tfjobs")
# Labels of the pods: the name of the job, the type of the task, its index.
JOB_LABEL = "training.kubeflow.org/job-name"
_TYPE_LABEL = "training.kubeflow.org/replica-type"
_INDEX_LABEL = "training.kubeflow.org/replica-index"
# The operator sets TF_CONFIG in the container of this name.
CONTAINER = "tensorflow"
_REPLICA_TYPES = {"chief": "Chief", "worker": "Worker", "ps": "PS"}
_PHASES: dict[str, Any] = {
    "Failed": "failed",
    "Succeeded": "succeeded",
    "Suspended": "suspended",
}


def manifest(distribution: Distribution, name: str, folder: str, digest: str) -> dict[str, Any]:
    """Returns the TFJob for a distribution.

    Args:
        distribution: what was asked for, with the workers' environment in `env`.
        name: of the TFJob.
        folder: of the job, on the pipeline root.
        digest: of the job; see `JobFolder`.
    """
    options = options_of(distribution)
    run_policy: dict[str, Any] = {"cleanPodPolicy": "Running", "backoffLimit": 0}
    if distribution.timeout_s is not None:  # for when nobody is left to stop it
        run_policy["activeDeadlineSeconds"] = math.ceil(distribution.timeout_s)
    return {
        **TFJOB.header,
        "metadata": {"name": name, "namespace": options.namespace, "labels": dict(options.labels)},
        "spec": {
            "runPolicy": run_policy,
            "tfReplicaSpecs": {
                _REPLICA_TYPES[kind]: {
                    "replicas": len(ones),
                    "restartPolicy": "Never",
                    "template": pod_template(
                        distribution, ones[0], [folder, digest], container_name=CONTAINER
                    ),
                }
                for kind, group in itertools.groupby(tasks(distribution), lambda task: task.type)
                if (ones := list(group))
            },
        },
    }


def task_of(metadata: Any) -> Task | None:
    """Returns the task of a pod, as the operator has labelled it."""
    labels = metadata.labels or {}
    kind, index = labels.get(_TYPE_LABEL, ""), labels.get(_INDEX_LABEL, "")
    return Task(kind.lower(), int(index)) if kind and index.isdecimal() else None


def status_of(job: Mapping[str, Any]) -> JobStatus:
    """Returns what the operator says of a TFJob: its last condition that holds."""
    conditions = job.get("status", {}).get("conditions") or []
    holding = [one for one in conditions if one.get("status") == "True"]
    last = holding[-1] if holding else {}
    phase, message = _PHASES.get(last.get("type", "")), last.get("message", "")
    if phase is None and job["spec"]["runPolicy"].get("suspend"):  # its pods are about to end
        phase = "suspended"
    return JobStatus(phase or "active", message)
