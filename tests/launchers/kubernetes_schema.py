"""What a TFJob, a TrainJob and a TrainingRuntime may hold, as strictly as the API server sees it.

The fields and their types are in `kubeflow_types.json`: those of the OpenAPI descriptions that
Kubeflow generates its published models from, in the releases of the packages on PyPI that are its
keys (`kubeflow_training`, `kubeflow_trainer_api`, both Apache-2.0), without the descriptions. What
they take from Kubernetes is checked against the types of the `kubernetes` client, which are made in
the same way. Values that the definitions list, and the rules of the operators' webhooks, are here.
The API server drops fields that a definition does not have; here they are errors.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kubernetes import client

__all__ = ["problems_of"]

Models = Mapping[str, Mapping[str, Any]]

_RELEASES: dict[str, Models] = json.loads(
    Path(__file__).with_name("kubeflow_types.json").read_text()
)
MODELS: Models = {name: model for release in _RELEASES.values() for name, model in release.items()}
_VALUES = {
    ("KubeflowOrgV1ReplicaSpec", "restartPolicy"): ("Always", "ExitCode", "Never", "OnFailure"),
    ("KubeflowOrgV1RunPolicy", "cleanPodPolicy"): ("All", "Running", "None"),
    ("KubeflowOrgV1TFJobSpec", "successPolicy"): ("", "AllWorkers"),
    ("JobsetV1alpha2SuccessPolicy", "operator"): ("All", "Any"),
    ("TrainerV1alpha1RuntimeRef", "kind"): ("ClusterTrainingRuntime", "TrainingRuntime"),
    ("V1JobSpec", "completionMode"): ("Indexed", "NonIndexed"),
    ("V1PodSpec", "restartPolicy"): ("Always", "Never", "OnFailure"),
}
_REPLICA_TYPES = ("Chief", "Evaluator", "Master", "PS", "Worker")
_STEP_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"
# Operators name a service after each pod, hence RFC 1035, and add to the name of the job.
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LONGEST_NAME = 63 - len("-worker-0-99999")
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGTPE]i?)?")


def problems_of(manifest: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with an object, each with its place."""
    kind = manifest["kind"]
    model, version, rules = _KINDS[kind]
    place = kind.lower()
    found = [*_typed(manifest, model, place), *_metadata(manifest, place), *rules(manifest)]
    if manifest["apiVersion"] != version:
        found.append(f"{place}.apiVersion must be {version}")
    return found


def _metadata(manifest: Mapping[str, Any], place: str) -> Iterator[str]:
    name = manifest["metadata"].get("name", "")
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        yield f"{place}.metadata.name: {name!r} gives no name for a service"


def _tfjob(job: Mapping[str, Any]) -> Iterator[str]:
    for kind, spec in job["spec"].get("tfReplicaSpecs", {}).items():
        place = f"tfReplicaSpecs.{kind}"
        if kind not in _REPLICA_TYPES:
            yield f"{place} is no type of replica"
        if kind in ("Chief", "Master") and spec.get("replicas") != 1:
            yield f"{place}.replicas must be 1"
        yield from _containers(spec["template"]["spec"], "tensorflow", place)


def _trainjob(job: Mapping[str, Any]) -> Iterator[str]:
    if len(job["metadata"]["name"]) > 63:
        yield "trainjob.metadata.name must be no more than 63 characters"


def _runtime(runtime: Mapping[str, Any]) -> Iterator[str]:
    spec = runtime["spec"]["template"]["spec"]
    jobs = {job["name"]: job for job in spec["replicatedJobs"]}
    trains = [
        name
        for name, job in jobs.items()
        if job["template"]["metadata"]["labels"].get(_STEP_LABEL) == "trainer"
    ]
    if len(trains) != 1:
        yield f"one replicated job must be the step that trains, not {trains}"
    for name, job in jobs.items():
        place = f"replicatedJobs.{name}"
        if job["replicas"] != 1:
            yield f"{place}.replicas: always must be 1"
        pods = job["template"]["spec"]
        if pods["template"]["spec"].get("restartPolicy") not in ("Never", "OnFailure"):
            yield f"{place}: the pods of a Job must have the restartPolicy Never or OnFailure"
        if name in trains and runtime["spec"]["mlPolicy"]["numNodes"] != pods["parallelism"]:
            yield f"{place}.parallelism is overwritten by mlPolicy.numNodes"
        yield from _containers(pods["template"]["spec"], "node", place)
    for target in spec.get("successPolicy", {}).get("targetReplicatedJobs", []):
        if target not in jobs:
            yield f"successPolicy: there is no replicated job {target}"


def _containers(pod: Mapping[str, Any], name: str, place: str) -> Iterator[str]:
    containers = pod.get("containers", [])
    if [one.get("name") for one in containers].count(name) != 1:
        yield f"{place} needs exactly one container with the name {name}"
    if not all(one.get("image") for one in containers):
        yield f"{place} has a container without an image"


Rules = Callable[[Mapping[str, Any]], Iterator[str]]
_KINDS: dict[str, tuple[str, str, Rules]] = {
    "TFJob": ("KubeflowOrgV1TFJob", "kubeflow.org/v1", _tfjob),
    "TrainJob": ("TrainerV1alpha1TrainJob", "trainer.kubeflow.org/v1alpha1", _trainjob),
    "TrainingRuntime": (
        "TrainerV1alpha1TrainingRuntime",
        "trainer.kubeflow.org/v1alpha1",
        _runtime,
    ),
}


def _typed(value: Any, kind: str, place: str) -> Iterator[str]:
    """Yields how a value differs from a type of an OpenAPI description."""
    if match := re.fullmatch(r"[Ll]ist\[(.+)\]", kind):
        if not isinstance(value, list):
            yield f"{place} must be a list, not {value!r}"
            return
        for number, item in enumerate(value):
            yield from _typed(item, match[1], f"{place}[{number}]")
    elif match := re.fullmatch(r"dict\(str, (.+)\)|Dict\[str, (.+)\]", kind):
        if not isinstance(value, dict):
            yield f"{place} must be an object, not {value!r}"
            return
        for name, item in value.items():
            yield from _typed(item, match[1] or match[2], f"{place}.{name}")
            if place.endswith(("requests", "limits")) and not _QUANTITY.fullmatch(str(item)):
                yield f"{place}.{name}: {item!r} is no quantity"
    elif kind in ("str", "int", "bool"):
        if type(value).__name__ != kind:
            yield f"{place} must be {kind}, not {value!r}"
        elif kind == "int" and value < 0:
            yield f"{place} must be at least 0, not {value!r}"
    elif kind != "object":
        yield from _model(value, kind, place)


def _model(value: Any, kind: str, place: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{place} must be an object, not {value!r}"
        return
    if kind in MODELS:
        fields = MODELS[kind]["fields"]
        required = MODELS[kind].get("required", ())
    else:
        model = getattr(client, kind)
        fields = {json: model.openapi_types[name] for name, json in model.attribute_map.items()}
        required = ()
    yield from (f"{place}.{name} is required" for name in required if name not in value)
    for name, item in value.items():
        if name not in fields:
            yield f"{place} has no field {name}"
            continue
        yield from _typed(item, fields[name], f"{place}.{name}")
        allowed = _VALUES.get((kind, name))
        if allowed is not None and item not in allowed:
            yield f"{place}.{name} must be one of {allowed}, not {item!r}"
