"""The TFJob is one that the API server takes, and asks for what the distribution says."""

from typing import Any

import pytest

from generic_trainer.launchers import Distribution, TFJobOptions
from generic_trainer.launchers._kubernetes.operators import TFJobs
from tests.launchers.kubernetes_schema import problems_of

NAME = "generic-trainer-0123456789"
# What manifests are checked for: fields of a distribution.
SHAPES: list[dict[str, Any]] = [
    {},
    {"num_workers": 4, "timeout_s": 0.5},
    {"num_workers": 2, "parameter_servers": 3, "gpus_per_worker": 2},
    {"cpus_per_worker": 1.5, "memory_mb_per_worker": 2048, "require_gpu": True},
    {
        "env": {"TF_USE_LEGACY_KERAS": "1"},
        "options": {
            "namespace": "team",
            "service_account": "trainer",
            "volumes": {"pipelines": "/pipelines", "data": "/data"},
            "node_selector": {"gpu": "a100"},
            "labels": {"cost": "research"},
        },
    },
]


def made(**fields: Any) -> dict[str, Any]:
    options = {"image": "example/trainer:1", **fields.pop("options", {})}
    distribution = Distribution(launcher="tfjob", tfjob=TFJobOptions(**options), **fields)
    (job,) = TFJobs.manifests(distribution, NAME, "gs://bucket/root/job", "digest")
    return job


def container(job: dict[str, Any], kind: str) -> dict[str, Any]:
    spec = job["spec"]["tfReplicaSpecs"][kind]["template"]["spec"]
    (only,) = spec["containers"]
    return dict(only)


@pytest.mark.parametrize("fields", SHAPES)
def test_every_tfjob_is_what_the_definition_allows(fields: dict[str, Any]) -> None:
    assert problems_of(made(**fields)) == []


def replicas(job: dict[str, Any]) -> dict[str, int]:
    return {kind: spec["replicas"] for kind, spec in job["spec"]["tfReplicaSpecs"].items()}


def test_chief_that_is_asked_for_is_one_of_the_workers() -> None:
    assert replicas(made(num_workers=3)) == {"Worker": 3}
    assert replicas(made(num_workers=3, chief=True)) == {"Chief": 1, "Worker": 2}


def test_chief_that_sends_orders_comes_in_addition_and_needs_no_gpu() -> None:
    job = made(num_workers=3, parameter_servers=2, gpus_per_worker=1)
    assert replicas(job) == {"Chief": 1, "Worker": 3, "PS": 2}
    limits = {kind: container(job, kind)["resources"]["limits"] for kind in replicas(job)}
    assert limits == {"Chief": {}, "Worker": {"nvidia.com/gpu": "1"}, "PS": {}}


def test_resources_are_asked_for_and_memory_is_limited() -> None:
    job = made(cpus_per_worker=1.5, memory_mb_per_worker=2048, require_gpu=True)
    assert container(job, "Worker")["resources"] == {
        "requests": {"cpu": "1.5", "memory": "2048Mi"},
        "limits": {"memory": "2048Mi", "nvidia.com/gpu": "1"},
    }


def test_nothing_is_restarted_behind_the_launchers_back_and_time_is_limited() -> None:
    spec = made(num_workers=2, timeout_s=90.5, preemption_grace_s=30)["spec"]
    assert spec["runPolicy"]["activeDeadlineSeconds"] == 91
    for replica in spec["tfReplicaSpecs"].values():
        assert replica["restartPolicy"] == "Never"
        assert replica["template"]["spec"]["terminationGracePeriodSeconds"] > 30


def test_volumes_are_mounted_where_they_are_said_to_be() -> None:
    job = made(options={"volumes": {"pipelines": "/pipelines"}})
    spec = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    (volume,), (mount,) = spec["volumes"], spec["containers"][0]["volumeMounts"]
    assert volume["persistentVolumeClaim"] == {"claimName": "pipelines"}
    assert mount == {"name": volume["name"], "mountPath": "/pipelines"}
