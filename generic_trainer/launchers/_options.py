"""Options of single engines in a `Distribution`: where their workers run, and as whom."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from generic_trainer._core.texts import describe, is_number

# Of seconds and MiB: more has no end, and what waits or counts with 64 bits cannot take it.
MOST = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class RayOptions:
    """Where Ray is.

    Attributes:
        address: of a Ray cluster: `"auto"`, `"ray://head:10001"`, `"head:6379"`. None starts a
            Ray on this machine, for the time of the run.
        connect_timeout_s: how long, in seconds, to wait for the cluster to answer, and then for the
            workers to be placed. None waits 20 s for the one and 300 s for the other.
        resize_interval_s: how often, in seconds, a run with `num_workers=(fewest, most)` looks
            whether there is room for more workers, or for less. None looks once a minute.
        runtime_env: what Ray shall set up on its nodes, such as `{"pip": ["generic-trainer"]}`.
    """

    address: str | None = None
    connect_timeout_s: float | None = None
    resize_interval_s: float | None = None
    runtime_env: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class KubernetesOptions:
    """Where and as whom Kubernetes runs the workers.

    Attributes:
        image: container image with this package and TensorFlow. The pipeline root must be reachable
            from it, under the same path.
        namespace: where the job is made.
        service_account: of the pods; None takes the namespace's default.
        volumes: name of a PersistentVolumeClaim → where it is mounted, such as
            `{"pipelines": "/pipelines"}`.
        node_selector: labels that the nodes must have.
        labels: labels of the job and its pods, such as the one that names a queue of Kueue.
        keep_job: leave the job there when it is over, for looking at its pods.
    """

    image: str = ""
    namespace: str = "default"
    service_account: str | None = None
    volumes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    node_selector: Mapping[str, str] = dataclasses.field(default_factory=dict)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    keep_job: bool = False


@dataclasses.dataclass(frozen=True)
class TFJobOptions(KubernetesOptions):
    """Where and as whom Kubernetes runs the pods of a TFJob; see `KubernetesOptions`."""


@dataclasses.dataclass(frozen=True)
class TrainJobOptions(KubernetesOptions):
    """Where and as whom Kubernetes runs the pods of a TrainJob; see `KubernetesOptions`."""


@dataclasses.dataclass(frozen=True)
class VertexOptions:
    """Where and as whom Vertex AI runs the workers.

    Attributes:
        image: container image with this package and TensorFlow.
        project: the Google Cloud project.
        region: such as `"us-central1"`.
        machine_type: of the workers, such as `"n1-standard-8"`; it decides their processors and
            their memory. The number of accelerators is `gpus_per_worker`, their type `gpu_type`.
        parameter_server_machine_type: of parameter servers; None takes that of the workers.
        boot_disk_type: such as `"pd-ssd"`; None leaves it to Vertex AI.
        boot_disk_size_gb: size of the boot disk; None leaves it to Vertex AI.
        spot: whether to take Spot VMs, which cost less and may be preempted.
        persistent_resource: id of a persistent resource to run on.
        service_account: of the workers; None takes the project's default.
        network: full name of a VPC network to peer with.
        labels: labels of the custom job.
        display_name: of the custom job; None makes one.
        custom_job: further fields of the `CustomJob`, as its JSON has them, such as
            `{"encryption_spec": {...}, "job_spec": {"scheduling": {...}}}`.
    """

    image: str = ""
    project: str = ""
    region: str = ""
    machine_type: str = "n1-standard-4"
    parameter_server_machine_type: str | None = None
    boot_disk_type: str | None = None
    boot_disk_size_gb: int | None = None
    spot: bool = False
    persistent_resource: str | None = None
    service_account: str | None = None
    network: str | None = None
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    display_name: str | None = None
    custom_job: Mapping[str, Any] = dataclasses.field(default_factory=dict)


# Name of the engine → the class of its options.
OPTIONS: dict[str, type] = {
    "ray": RayOptions,
    "tfjob": TFJobOptions,
    "trainjob": TrainJobOptions,
    "vertex": VertexOptions,
}
# Engine → the options that it cannot do without.
REQUIRED = {
    "tfjob": ("image",),
    "trainjob": ("image",),
    "vertex": ("image", "project", "region"),
}


def wrong_options(name: str, options: Any) -> Iterator[str]:
    """Yields what is wrong with the options of an engine.

    Args:
        name: of the engine.
        options: an instance of its class.
    """
    for field in dataclasses.fields(options):
        value, place = getattr(options, field.name), f"{name}.{field.name}"
        if field.type == "str" and not isinstance(value, str):
            yield f"{place} must be a text, got {describe(value)}"
        elif field.type == "str | None" and not isinstance(value, str | None):
            yield f"{place} must be a text or None, got {describe(value)}"
        elif field.type == "bool" and not isinstance(value, bool):
            yield f"{place} must be True or False, got {describe(value)}"
        elif field.type == "int | None" and not _is_whole(value) and value is not None:
            yield f"{place} must be a positive whole number or None, got {describe(value)}"
        elif field.type == "float | None" and not is_positive(value) and value is not None:
            yield f"{place} must be a positive number or None, got {describe(value)}"
        elif field.type == "Mapping[str, str]" and not is_text_mapping(value):
            yield f"{place} must be a dict of texts, got {describe(value)}"
        elif field.type == "Mapping[str, Any]" and not isinstance(value, Mapping):
            yield f"{place} must be a dict, got {describe(value)}"


def is_positive(value: Any) -> bool:
    """Returns whether a value is a positive number with an end."""
    return is_number(value) and 0 < value <= MOST


def is_text_mapping(value: Any) -> bool:
    """Returns whether a value maps texts to texts."""
    return isinstance(value, Mapping) and all(
        isinstance(part, str) for item in value.items() for part in item
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and is_positive(value)
