"""TFJob of Kubeflow's training operator 1.x.

The fields are those of the custom resource definition `tfjobs.kubeflow.org` (v1).
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from generic_trainer.launchers._distribution import Distribution, tasks
from generic_trainer.launchers._kubernetes.api import Kind
from generic_trainer.launchers._kubernetes.pods import pod_template
from generic_trainer.launchers._kubernetes.service import KubernetesService

_LABELS = "training.kubeflow.org/"
_REPLICA_TYPES = {"chief": "Chief", "worker": "Worker", "ps": "PS"}


class TFJobs(KubernetesService):
    """TFJobs; see `KubernetesService`."""

    release = "Kubeflow's training operator 1.x"
    kinds = (Kind("TFJob", "kubeflow.org", "v1", "tfjobs"),)
    job_label = f"{_LABELS}job-name"
    type_label = f"{_LABELS}replica-type"
    index_label = f"{_LABELS}replica-index"
    container = "tensorflow"  # where the operator sets TF_CONFIG

    @staticmethod
    def specs(
        distribution: Distribution, name: str, arguments: Sequence[str]
    ) -> tuple[dict[str, Any], ...]:
        """Returns the specification of the TFJob."""
        run_policy: dict[str, Any] = {"cleanPodPolicy": "Running", "backoffLimit": 0}
        if distribution.timeout_s is not None:  # in case this process is killed
            run_policy["activeDeadlineSeconds"] = math.ceil(distribution.timeout_s)
        replicas = {}
        for kind, group in itertools.groupby(tasks(distribution), lambda task: task.type):
            first, *others = group
            template = pod_template(distribution, first, arguments, container_name=TFJobs.container)
            replicas[_REPLICA_TYPES[kind]] = {
                "replicas": 1 + len(others),
                "restartPolicy": "Never",
                "template": template,
            }
        return ({"runPolicy": run_policy, "tfReplicaSpecs": replicas},)
