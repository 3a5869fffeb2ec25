"""What a TFJob may hold, as strictly as the API server sees it.

Written from the custom resource definition `tfjobs.kubeflow.org` (v1) that Kubeflow publishes with
its training operator (github.com/kubeflow/training-operator, manifests/base/crds, Apache-2.0), and
from the operator's own checks. The pod template is checked against the types of the `kubernetes`
client, which are generated from Kubernetes' OpenAPI description. The API server drops fields that a
definition does not have; here they are errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kubernetes import client

__all__ = ["problems_of"]

_INT32, _INT64 = (0, 2**31 - 1), (0, 2**63 - 1)
_RUN_POLICY = {
    "activeDeadlineSeconds": _INT64,
    "backoffLimit": _INT32,
    "cleanPodPolicy": ("All", "Running", "None"),
    "managedBy": str,
    "schedulingPolicy": dict,
    "suspend": bool,
    "ttlSecondsAfterFinished": _INT32,
}
_SPEC = {
    "enableDynamicWorker": bool,
    "runPolicy": _RUN_POLICY,
    "successPolicy": ("", "AllWorkers"),
    "tfReplicaSpecs": dict,
}
_REPLICA_TYPES = ("Chief", "Evaluator", "Master", "PS", "Worker")
_REPLICA = {
    "replicas": _INT32,
    "restartPolicy": ("Always", "ExitCode", "Never", "OnFailure"),
    "template": "V1PodTemplateSpec",
}
_JOB = {"apiVersion": ("kubeflow.org/v1",), "kind": ("TFJob",), "metadata": dict, "spec": _SPEC}
# The operator names a service after each pod, hence RFC 1035, and adds to the name of the job.
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LONGEST_NAME = 63 - len("-worker-99999")
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGTPE]i?)?")


def problems_of(job: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with a TFJob, each with its place."""
    return [*_fields(job, _JOB, "tfjob"), *_metadata(job), *_replicas(job)]


def _fields(value: Any, kind: Any, place: str) -> Iterator[str]:
    if isinstance(kind, str):
        yield from _typed(value, kind, place)
    elif isinstance(kind, dict):
        if not isinstance(value, dict):
            yield f"{place} must be an object, not {value!r}"
            return
        for name, item in value.items():
            if name in kind:
                yield from _fields(item, kind[name], f"{place}.{name}")
            else:
                yield f"{place} has no field {name}"
    elif isinstance(kind, type):
        if not isinstance(value, kind):
            yield f"{place} must be a {kind.__name__}, not {value!r}"
    elif isinstance(kind[0], int):
        if type(value) is not int or not kind[0] <= value <= kind[1]:
            yield f"{place} must be a number from {kind[0]} to {kind[1]}, not {value!r}"
    elif value not in kind:
        yield f"{place} must be one of {kind}, not {value!r}"


def _metadata(job: Mapping[str, Any]) -> Iterator[str]:
    yield from _typed(job["metadata"], "V1ObjectMeta", "tfjob.metadata")
    name = job["metadata"].get("name", "")
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        yield f"tfjob.metadata.name: {name!r} gives no name for a service"


def _replicas(job: Mapping[str, Any]) -> Iterator[str]:
    specs = job["spec"].get("tfReplicaSpecs")
    if not specs:
        yield "tfjob.spec.tfReplicaSpecs is required"
        return
    for kind, spec in specs.items():
        place = f"tfReplicaSpecs.{kind}"
        if kind not in _REPLICA_TYPES:
            yield f"{place} is no type of replica"
        if kind in ("Chief", "Master") and spec.get("replicas") != 1:
            yield f"{place}.replicas must be 1"
        yield from _fields(spec, _REPLICA, place)
        containers = spec["template"]["spec"].get("containers", [])
        if [one.get("name") for one in containers].count("tensorflow") != 1:
            yield f"{place} needs exactly one container with the name tensorflow"
        if not all(one.get("image") for one in containers):
            yield f"{place} has a container without an image"


def _typed(value: Any, kind: str, place: str) -> Iterator[str]:
    """Yields how a value differs from a type of Kubernetes' OpenAPI description."""
    if match := re.fullmatch(r"list\[(.+)\]", kind):
        if not isinstance(value, list):
            yield f"{place} must be a list, not {value!r}"
            return
        for number, item in enumerate(value):
            yield from _typed(item, match[1], f"{place}[{number}]")
    elif match := re.fullmatch(r"dict\(str, (.+)\)", kind):
        if not isinstance(value, dict):
            yield f"{place} must be an object, not {value!r}"
            return
        for name, item in value.items():
            yield from _typed(item, match[1], f"{place}.{name}")
            if place.endswith(("requests", "limits")) and not _QUANTITY.fullmatch(str(item)):
                yield f"{place}.{name}: {item!r} is no quantity"
    elif kind in ("str", "int", "bool"):
        if type(value).__name__ != kind:
            yield f"{place} must be {kind}, not {value!r}"
    elif kind != "object":
        yield from _model(value, getattr(client, kind), place)


def _model(value: Any, model: Any, place: str) -> Iterator[str]:
    names = {json_name: name for name, json_name in model.attribute_map.items()}
    for json_name, item in value.items():
        if json_name not in names:
            yield f"{place} has no field {json_name}"
        else:
            kind = model.openapi_types[names[json_name]]
            yield from _typed(item, kind, f"{place}.{json_name}")
