"""Objects of Kubeflow's two operators: TFJob, and TrainJob with its TrainingRuntime.

A TFJob, of the training operator 1.x, has the fields of the custom resource definition
`tfjobs.kubeflow.org` (v1); the operator sets `TF_CONFIG`.

A TrainJob, of Kubeflow Trainer 2.x, has those of `trainjobs.trainer.kubeflow.org` and
`trainingruntimes.trainer.kubeflow.org` (v1alpha1), and of JobSet v1alpha2, which Trainer makes of
them. Trainer has runtimes for PyTorch, JAX and MPI but none for TensorFlow; this is one.

1. Each type of tasks is a replicated job, an indexed Job of Kubernetes. Its pods have the host
   names `<job>-<type>-0-<index>.<job>`, so `TF_CONFIG` is known before the pods exist.
2. The index of a pod is in an annotation, to which its environment refers.
3. JobSet, Job and pod all restart nothing.
"""

import functools
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

from generic_trainer._core.cluster import TF_CONFIG, Task, make_tf_config
from generic_trainer.launchers._distribution import (
    Distribution,
    TFJobOptions,
    TrainJobOptions,
    tasks,
)
from generic_trainer.launchers._kubernetes.service import Kind, KubernetesService
from generic_trainer.launchers._launch import Launcher
from generic_trainer.launchers._remote.engine import run_by_service
from generic_trainer.launchers._remote.service import ENDS_WITH_CHIEF

_GROUP = ("trainer.kubeflow.org", "v1alpha1")
_RUNTIME = Kind("TrainingRuntime", *_GROUP, "trainingruntimes")
_INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
_INDEX_VARIABLE = "GENERIC_TRAINER_TASK_INDEX"
# Trainer expects this label at the replicated job that trains.
_TRAINS = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
_PORT = 2222
# Of the training operator.
_LABELS = "training.kubeflow.org/"
_REPLICA_TYPES = {"chief": "Chief", "worker": "Worker", "ps": "PS"}


class TrainJobs(KubernetesService):
    """TrainJobs; see `KubernetesService`."""

    release = "Kubeflow Trainer 2.x"
    kinds = (_RUNTIME, Kind("TrainJob", *_GROUP, "trainjobs"))
    job_label = "jobset.sigs.k8s.io/jobset-name"
    type_label = "jobset.sigs.k8s.io/replicatedjob-name"
    index_label = _INDEX_ANNOTATION
    container = "node"
    # Of the webhooks of Trainer and of Kueue. They read objects from a cache, which learns of a new
    # runtime a moment later.
    unseen = re.compile("must be created before the TrainJob|runtime.* not found", re.I)

    @classmethod
    def specs(
        cls, distribution: Distribution, name: str, arguments: Sequence[str]
    ) -> tuple[dict[str, Any], ...]:
        """Returns the specifications of the TrainingRuntime and the TrainJob."""
        of_type = {
            kind: list(group)
            for kind, group in itertools.groupby(tasks(distribution), lambda task: task.type)
        }
        trains = "worker" if "worker" in of_type else "chief"
        jobs = [
            {
                "name": kind,
                "replicas": 1,
                "template": {
                    "metadata": {"labels": _TRAINS if kind == trains else {}},
                    "spec": _job(distribution, name, group, arguments),
                },
            }
            for kind, group in of_type.items()
        ]
        spec: dict[str, Any] = {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": jobs,
        }
        if "ps" in of_type:  # servers do not end by themselves
            spec["successPolicy"] = {"operator": "All", "targetReplicatedJobs": ["chief"]}
        return (
            {"mlPolicy": {"numNodes": len(of_type[trains])}, "template": {"spec": spec}},
            {"runtimeRef": {"apiGroup": _RUNTIME.group, "kind": _RUNTIME.name, "name": name}},
        )


def _job(
    distribution: Distribution, name: str, group: Sequence[Task], arguments: Sequence[str]
) -> dict[str, Any]:
    """Returns the indexed Job of the tasks of one type."""
    spec: dict[str, Any] = {
        "backoffLimit": 0,
        "completionMode": "Indexed",
        "completions": len(group),
        "parallelism": len(group),
        "template": TrainJobs.pod_template(
            distribution,
            group[0],
            arguments,
            _place(distribution, name, group[0]) if distribution.is_cluster else (),
        ),
    }
    spec["template"]["spec"]["restartPolicy"] = "Never"
    if distribution.timeout_s is not None:  # in case this process is killed
        spec["activeDeadlineSeconds"] = math.ceil(distribution.timeout_s)
    return spec


def _place(distribution: Distribution, name: str, task: Task) -> list[dict[str, Any]]:
    """Returns the variables with the cluster of a pod and its index in it."""
    addresses = {
        other: f"{name}-{other.type}-0-{other.index}.{name}:{_PORT}"
        for other in tasks(distribution)
    }
    config = make_tf_config(task, addresses)
    # Kubernetes replaces $(NAME) by the value of a variable that precedes it.
    index = f'"index": {task.index}'
    config = f'"index": $({_INDEX_VARIABLE})'.join(config.rsplit(index, 1))
    field = {"fieldPath": f"metadata.annotations['{_INDEX_ANNOTATION}']"}
    return [
        {"name": _INDEX_VARIABLE, "valueFrom": {"fieldRef": field}},
        {"name": TF_CONFIG, "value": config},
    ]


class TFJobs(KubernetesService):
    """TFJobs; see `KubernetesService`."""

    release = "Kubeflow's training operator 1.x"
    kinds = (Kind("TFJob", "kubeflow.org", "v1", "tfjobs"),)
    job_label = f"{_LABELS}job-name"
    type_label = f"{_LABELS}replica-type"
    index_label = f"{_LABELS}replica-index"
    container = "tensorflow"  # where the operator sets TF_CONFIG

    @classmethod
    def specs(
        cls, distribution: Distribution, name: str, arguments: Sequence[str]
    ) -> tuple[dict[str, Any], ...]:
        """Returns the specification of the TFJob."""
        run_policy: dict[str, Any] = {"cleanPodPolicy": "Running", "backoffLimit": 0}
        if distribution.timeout_s is not None:  # in case this process is killed
            run_policy["activeDeadlineSeconds"] = math.ceil(distribution.timeout_s)
        replicas = {}
        for kind, group in itertools.groupby(tasks(distribution), lambda task: task.type):
            first, *others = group
            replicas[_REPLICA_TYPES[kind]] = {
                "replicas": 1 + len(others),
                "restartPolicy": "Never",
                "template": cls.pod_template(distribution, first, arguments),
            }
        return ({"runPolicy": run_policy, "tfReplicaSpecs": replicas},)


TFJOB = Launcher(
    run=functools.partial(run_by_service, TFJobs),
    options=TFJobOptions,
    refused={"worker_grace_s": ENDS_WITH_CHIEF},
)
TRAINJOB = Launcher(run=functools.partial(run_by_service, TrainJobs), options=TrainJobOptions)
