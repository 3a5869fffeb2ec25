"""TrainJobs and their runtimes: what is made, how it is followed, suspended and resumed."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from generic_trainer.errors import ConfigurationError, WorkerHangError
from generic_trainer.launchers import Distribution, TrainJobOptions
from generic_trainer.launchers._kubernetes.operators import TrainJobs
from tests.launchers import jobs
from tests.launchers.jobs import EXPORTS, WAITS, Run
from tests.launchers.kubernetes.test_tfjob import SHAPES
from tests.launchers.kubernetes_schema import problems_of
from tests.launchers.kubernetes_stand_in import StandIn

NAME = "generic-trainer-0123456789"


def made(**fields: Any) -> dict[str, Any]:
    options = {"image": "example/trainer:1", **fields.pop("options", {})}
    distribution = Distribution(launcher="trainjob", trainjob=TrainJobOptions(**options), **fields)
    runtime, job = TrainJobs.manifests(distribution, NAME, "gs://bucket/root/job", "digest")
    assert problems_of(job) == []
    return runtime


def replicated(made: dict[str, Any]) -> dict[str, Any]:
    jobs = made["spec"]["template"]["spec"]["replicatedJobs"]
    return {job["name"]: job["template"]["spec"] for job in jobs}


def container(job: dict[str, Any]) -> dict[str, Any]:
    (only,) = job["template"]["spec"]["containers"]
    return dict(only)


@pytest.mark.parametrize("fields", SHAPES)
def test_every_runtime_is_what_the_definition_allows(fields: dict[str, Any]) -> None:
    assert problems_of(made(**fields)) == []


def test_nothing_is_restarted_behind_the_launchers_back_and_time_is_limited() -> None:
    runtime = made(num_workers=2, timeout_s=90.5)
    assert runtime["spec"]["template"]["spec"]["failurePolicy"] == {"maxRestarts": 0}
    (workers,) = replicated(runtime).values()
    assert (workers["backoffLimit"], workers["activeDeadlineSeconds"]) == (0, 91)
    assert workers["template"]["spec"]["restartPolicy"] == "Never"


def test_pods_are_told_their_place_by_host_names_that_are_known_before() -> None:
    runtime = made(num_workers=2, parameter_servers=1, gpus_per_worker=1)
    jobs = replicated(runtime)
    counts = {name: job["completions"] for name, job in jobs.items()}
    assert counts == {"chief": 1, "worker": 2, "ps": 1}
    index, config = container(jobs["worker"])["env"][-2:]
    assert "job-completion-index" in index["valueFrom"]["fieldRef"]["fieldPath"]
    filled = json.loads(config["value"].replace(f"$({index['name']})", "1"))
    assert filled["task"] == {"type": "worker", "index": 1}
    workers = [f"{NAME}-worker-0-{number}.{NAME}:2222" for number in (0, 1)]
    assert filled["cluster"]["worker"] == workers
    assert container(jobs["worker"])["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert container(jobs["ps"])["resources"]["limits"] == {}
    policy = runtime["spec"]["template"]["spec"]["successPolicy"]
    assert policy["targetReplicatedJobs"] == ["chief"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda job: job["spec"].update(restarts=3), "trainingruntime.spec has no field restarts"),
        (lambda job: replicated(job)["worker"].update(completionMode="All"), "must be one of"),
        (lambda job: job["spec"]["mlPolicy"].update(numNodes=3), "is overwritten by"),
        (
            lambda job: container(replicated(job)["worker"])["env"].append({"name": 1}),
            "must be str",
        ),
    ],
)
def test_definition_finds_mistakes(change: Any, problem: str) -> None:
    job = made()
    change(job)
    assert any(problem in found for found in problems_of(job))


@pytest.mark.parametrize(
    ("status", "spec", "phase"),
    [
        ({}, {}, "active"),
        ({"conditions": [{"type": "Suspended", "status": "False"}]}, {}, "active"),
        ({}, {"suspend": True}, "suspended"),
        ({"conditions": [{"type": "Complete", "status": "True"}]}, {}, "succeeded"),
        ({"conditions": [{"type": "Failed", "status": "True"}]}, {"suspend": True}, "failed"),
    ],
)
def test_status_is_read(status: dict[str, Any], spec: dict[str, Any], phase: str) -> None:
    assert TrainJobs.status_of({"spec": spec, "status": status}).phase == phase


def test_job_and_runtime_are_made_followed_and_deleted(train: Run, cluster: StandIn) -> None:
    cluster.instead = "print('this is worker 0')"
    job = train(EXPORTS)
    assert [made["kind"] for made in cluster.manifests] == ["TrainingRuntime", "TrainJob"]
    assert cluster.verbs == ["POST", "POST", "DELETE", "DELETE"]
    assert cluster.runtimes == {}
    assert jobs.log(job).count("this is worker 0") == 1
    assert not list(Path(job.request.model_run_dir).glob(".trainjob/*"))


# What the webhooks of Kubeflow Trainer and of Kueue answer before they see a new runtime.
UNSEEN = [
    'spec.runtimeRef: Invalid value: {"name":"NAME"}: TrainingRuntime.trainer.kubeflow.org "NAME" '
    "not found: specified trainingRuntime must be created before the TrainJob is created",
    "runtime 'NAME' not found",
]


def test_job_is_made_again_when_its_runtime_is_seen(train: Run, cluster: StandIn) -> None:
    cluster.instead, cluster.denials = "print()", list(UNSEEN)
    train(EXPORTS, max_failures=0)
    assert [made["kind"] for made in cluster.manifests] == ["TrainingRuntime", "TrainJob"]
    assert cluster.runtimes == {}


def test_any_other_denial_is_final(train: Run, cluster: StandIn) -> None:
    cluster.denials = ["user 'NAME' not found"]
    with pytest.raises(ConfigurationError, match="denied the request: user"):
        train(EXPORTS)
    assert cluster.verbs == ["POST", "POST", "DELETE", "DELETE"]


# The first pod makes a file and waits for its end; the second one finds the file.
SUSPENDED = """
import pathlib, time
flag = pathlib.Path({flag!r})
if not flag.exists():
    print("before", flush=True)
    flag.touch()
    time.sleep(600)
print("after")
"""


def test_suspended_job_is_waited_for_and_goes_on(
    train: Run, cluster: StandIn, tmp_path: Path
) -> None:
    flag = tmp_path / "began"

    def suspend_and_resume() -> None:
        while not flag.exists():
            threading.Event().wait(0.05)
        threading.Event().wait(1.5)  # longer than it takes to look again
        cluster.suspend(cluster.manifests[-1]["metadata"]["name"])
        threading.Event().wait(1.5)
        cluster.resume(cluster.manifests[-1]["metadata"]["name"])

    other = threading.Thread(target=suspend_and_resume)
    cluster.when_made = other.start
    cluster.instead = SUSPENDED.format(flag=str(flag))
    log = jobs.log(train(EXPORTS, max_failures=0))
    other.join()
    assert "suspended, waiting to be resumed; by a queue" in log
    assert log.index("before") < log.index("after")


def test_time_is_up_for_a_suspended_job_too(train: Run, cluster: StandIn) -> None:
    cluster.instead = WAITS
    cluster.when_made = lambda: cluster.suspend(cluster.manifests[-1]["metadata"]["name"])
    with pytest.raises(WorkerHangError, match="suspended, waiting"):
        train(EXPORTS, timeout_s=1.5)


def test_runtime_does_not_stay_when_the_job_is_refused(train: Run, cluster: StandIn) -> None:
    cluster.refuses = 403
    with pytest.raises(ConfigurationError, match=r"trainingruntimes\.trainer.* and train"):
        train(EXPORTS)
    assert cluster.runtimes == {}
