"""What single engines need to know beyond what all of them have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = ["RayOptions", "TFJobOptions"]


@dataclasses.dataclass(frozen=True)
class RayOptions:
    """Where Ray is.

    Attributes:
        address: of a Ray cluster: `"auto"`, `"ray://head:10001"`, `"head:6379"`. None starts a
            Ray on this machine, for the time of the run.
        connect_timeout_s: how long, in seconds, to wait for the cluster to answer and for the
            workers to be placed.
        runtime_env: what Ray shall set up on its nodes, such as `{"pip": ["generic-trainer"]}`.
    """

    address: str | None = None
    connect_timeout_s: float = 300.0
    runtime_env: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class TFJobOptions:
    """Where and as whom Kubernetes runs the workers.

    Attributes:
        image: container image with this package and TensorFlow. The pipeline root must be reachable
            from it, under the same path.
        namespace: where the TFJob is made.
        service_account: of the pods; None takes the namespace's default.
        volumes: name of a PersistentVolumeClaim → where it is mounted, such as
            `{"pipelines": "/pipelines"}`.
        node_selector: labels that the nodes must have.
        labels: labels of the pods.
        keep_job: leave the TFJob there when it is over, for looking at its pods.
    """

    image: str = ""
    namespace: str = "default"
    service_account: str | None = None
    volumes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    node_selector: Mapping[str, str] = dataclasses.field(default_factory=dict)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    keep_job: bool = False
