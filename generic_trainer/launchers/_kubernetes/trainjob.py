"""TrainJob of Kubeflow Trainer 2.x, with the TrainingRuntime that tells its pods their place.

The fields are those of the custom resource definitions `trainjobs.trainer.kubeflow.org` and
`trainingruntimes.trainer.kubeflow.org` (v1alpha1), and of JobSet v1alpha2, which Trainer makes of
them. Trainer has runtimes for PyTorch, JAX and MPI and none for TensorFlow: this is one.

1. Each type of tasks is a replicated job, an indexed Job of Kubernetes. Its pods have the host
   names `<job>-<type>-0-<index>.<job>`, so that `TF_CONFIG` is known before there are any.
2. The index of a pod is in an annotation, which its environment refers to.
3. The failure policy is to restart nothing, on all three floors: JobSet, Job and pod.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from generic_trainer._core.cluster import TF_CONFIG, Task, make_tf_config
from generic_trainer.launchers._distribution import Distribution, tasks
from generic_trainer.launchers._kubernetes.api import Kind
from generic_trainer.launchers._kubernetes.pods import options_of, pod_template
from generic_trainer.launchers._remote.service import JobStatus

TRAINJOB = Kind("TrainJob", "trainer.kubeflow.org", "v1alpha1", "trainjobs")
RUNTIME = Kind("TrainingRuntime", "trainer.kubeflow.org", "v1alpha1", "trainingruntimes")
# Labels and annotations of the pods: the name of the job, the type of the task, its index.
JOB_LABEL = "jobset.sigs.k8s.io/jobset-name"
_TYPE_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"
_INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
_INDEX_VARIABLE = "GENERIC_TRAINER_TASK_INDEX"
# Trainer expects both of the replicated job that trains.
_STEP_LABEL, _STEP = "trainer.kubeflow.org/trainjob-ancestor-step", "trainer"
CONTAINER = "node"
_PORT = 2222


def runtime(distribution: Distribution, name: str, folder: str, digest: str) -> dict[str, Any]:
    """Returns the TrainingRuntime for a distribution.

    Args:
        distribution: what was asked for, with the workers' environment in `env`.
        name: of the TrainJob, and of the runtime.
        folder: of the job, on the pipeline root.
        digest: of the job; see `JobFolder`.
    """
    options = options_of(distribution)
    of_type = {
        kind: list(group)
        for kind, group in itertools.groupby(tasks(distribution), lambda task: task.type)
    }
    trains = "worker" if "worker" in of_type else "chief"
    spec: dict[str, Any] = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [
            {
                "name": kind,
                "replicas": 1,
                "template": {
                    "metadata": {"labels": {_STEP_LABEL: _STEP} if kind == trains else {}},
                    "spec": _job(distribution, name, ones, [folder, digest]),
                },
            }
            for kind, ones in of_type.items()
        ],
    }
    if "ps" in of_type:  # servers do not end by themselves
        spec["successPolicy"] = {"operator": "All", "targetReplicatedJobs": ["chief"]}
    return {
        **RUNTIME.header,
        "metadata": {"name": name, "namespace": options.namespace, "labels": dict(options.labels)},
        "spec": {
            "mlPolicy": {"numNodes": len(of_type[trains])},
            "template": {"spec": spec},
        },
    }


def manifest(distribution: Distribution, name: str) -> dict[str, Any]:
    """Returns the TrainJob for the runtime of the same name."""
    options = options_of(distribution)
    return {
        **TRAINJOB.header,
        "metadata": {"name": name, "namespace": options.namespace, "labels": dict(options.labels)},
        "spec": {"runtimeRef": {"apiGroup": RUNTIME.group, "kind": RUNTIME.name, "name": name}},
    }


def task_of(metadata: Any) -> Task | None:
    """Returns the task of a pod, as JobSet has labelled it."""
    kind = (metadata.labels or {}).get(_TYPE_LABEL, "")
    index = (metadata.annotations or {}).get(_INDEX_ANNOTATION, "")
    return Task(kind, int(index)) if kind and index.isdecimal() else None


def status_of(job: Mapping[str, Any]) -> JobStatus:
    """Returns what Trainer says of a TrainJob.

    It is suspended from the moment at which that is asked for, be it by a person or by Kueue: from
    then on its pods are ended.
    """
    status = job.get("status") or {}
    held = {
        one["type"]: one.get("message", "")
        for one in status.get("conditions") or []
        if one.get("status") == "True"
    }
    progress = _progress(status)
    if "Failed" in held:
        return JobStatus("failed", held["Failed"], progress=progress)
    if "Complete" in held:
        return JobStatus("succeeded", held["Complete"], progress=progress)
    if job["spec"].get("suspend"):
        return JobStatus("suspended", held.get("Suspended", ""), progress=progress)
    return JobStatus("active", progress=progress)


def _job(
    distribution: Distribution, name: str, ones: list[Task], arguments: list[str]
) -> dict[str, Any]:
    """Returns the indexed Job of the tasks of one type."""
    spec: dict[str, Any] = {
        "backoffLimit": 0,
        "completionMode": "Indexed",
        "completions": len(ones),
        "parallelism": len(ones),
        "template": pod_template(
            distribution,
            ones[0],
            arguments,
            container_name=CONTAINER,
            env=_place(distribution, name, ones[0]) if distribution.is_cluster else (),
        ),
    }
    spec["template"]["spec"]["restartPolicy"] = "Never"
    if distribution.timeout_s is not None:  # for when nobody is left to stop it
        spec["activeDeadlineSeconds"] = math.ceil(distribution.timeout_s)
    return spec


def _place(distribution: Distribution, name: str, task: Task) -> list[dict[str, Any]]:
    """Returns the variables that tell the pods of a type their cluster and their index in it."""
    addresses = {
        each: f"{name}-{each.type}-0-{each.index}.{name}:{_PORT}" for each in tasks(distribution)
    }
    config = make_tf_config(task, addresses)
    # Kubernetes replaces $(NAME) by a variable that stands before.
    index = f'"index": {task.index}'
    config = f'"index": $({_INDEX_VARIABLE})'.join(config.rsplit(index, 1))
    field = {"fieldPath": f"metadata.annotations['{_INDEX_ANNOTATION}']"}
    return [
        {"name": _INDEX_VARIABLE, "valueFrom": {"fieldRef": field}},
        {"name": TF_CONFIG, "value": config},
    ]


def _progress(status: Mapping[str, Any]) -> str:
    """Returns what the status tells of the way that is made, as a sentence."""
    counts = [
        f"{one['name']} "
        + (
            ", ".join(
                name
                for name in ("active", "ready", "succeeded", "failed", "suspended")
                if one.get(name)
            )
            or "to come"
        )
        for one in status.get("jobsStatus") or []
    ]
    trainer = status.get("trainerStatus") or {}
    if trainer.get("progressPercentage") is not None:
        counts.append(f"{trainer['progressPercentage']} % done")
    if trainer.get("estimatedRemainingSeconds") is not None:
        counts.append(f"about {trainer['estimatedRemainingSeconds']} s left")
    counts += [f"{one['name']} {one['value']}" for one in trainer.get("metrics") or []]
    return "; ".join(counts)
