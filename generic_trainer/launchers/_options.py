"""Options of single launchers in a `Distribution`: location and account of their workers."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from generic_trainer._core.options import Options, Positive, Text, options
from generic_trainer.errors import ConfigurationError


@options(frozen=True)
class RayOptions(Options):
    """The Ray cluster, and settings of its nodes.

    Attributes:
        address: address of the cluster: `"auto"`, `"ray://head:10001"`, `"head:6379"`. None starts
            a Ray on this machine, for the time of the run.
        connect_timeout_s: how long, in seconds, to wait for the cluster to answer, and then for the
            workers to be placed. None waits 20 s for the one and 300 s for the other.
        runtime_env: packages etc. for Ray to install, such as `{"pip": ["generic-trainer"]}`.
    """

    address: str | None = None
    connect_timeout_s: Positive | None = None
    runtime_env: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@options(frozen=True)
class KubernetesOptions(Options):
    """Location and account of workers on Kubernetes.

    Attributes:
        image: container image with this package and TensorFlow. The pipeline root must be reachable
            from it, under the same path.
        namespace: namespace of the job.
        service_account: account of the pods; None takes the namespace's default.
        volumes: name of a PersistentVolumeClaim → path at which it is mounted, such as
            `{"pipelines": "/pipelines"}`.
        node_selector: labels that the nodes must have.
        labels: labels of the job and its pods, such as the one that names a queue of Kueue.
    """

    image: Text
    namespace: str = "default"
    service_account: str | None = None
    volumes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    node_selector: Mapping[str, str] = dataclasses.field(default_factory=dict)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


@options(frozen=True)
class TFJobOptions(KubernetesOptions):
    """Location and account of the pods of a TFJob; see `KubernetesOptions`."""


@options(frozen=True)
class TrainJobOptions(KubernetesOptions):
    """Location and account of the pods of a TrainJob; see `KubernetesOptions`."""


@options(frozen=True)
class VertexOptions(Options):
    """Location and account of workers on Vertex AI.

    Attributes:
        image: container image with this package and TensorFlow.
        project: the Google Cloud project.
        region: such as `"us-central1"`.
        machine_type: machines of the workers, such as `"n1-standard-8"`, with their processors and
            memory. The number of accelerators is `gpus_per_worker`, their type `gpu_type`.
        spot: whether to use Spot VMs, which cost less and may be preempted.
        service_account: account of the workers; None takes the project's default.
        labels: labels of the custom job.
        custom_job: other fields of the `CustomJob`, with the names of its proto, such as
            `{"display_name": "penguins", "job_spec": {"network": ..., "scheduling": {...},
            "worker_pool_specs": [{"disk_spec": {"boot_disk_size_gb": 200}}]}}`.
    """

    image: Text
    project: Text
    region: Text
    machine_type: str = "n1-standard-4"
    spot: bool = False
    service_account: str | None = None
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    custom_job: Mapping[str, Any] = dataclasses.field(default_factory=dict)


# Name of the engine → the class of its options.
OPTIONS: dict[str, Any] = {
    "ray": RayOptions,
    "tfjob": TFJobOptions,
    "trainjob": TrainJobOptions,
    "vertex": VertexOptions,
}


@contextlib.contextmanager
def needed_client(launcher: str, requirement: str, extra: str) -> Iterator[None]:
    """Explains that the client of a launcher's service cannot be imported.

    Args:
        launcher: name of the launcher.
        requirement: the argument of `pip install`.
        extra: the extra of this package with that requirement.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(
            f"launcher={launcher!r} needs a client that is not installed here: "
            f"pip install {requirement}, or GenericTrainer's extra `{extra}` ({error})."
        ) from error
