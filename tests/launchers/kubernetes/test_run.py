"""Making, watching, retrying and deleting jobs of Kubernetes, TFJobs for the most part."""

from pathlib import Path
from typing import Any

import pytest

from generic_trainer.errors import (
    ConfigurationError,
    DataError,
    TrainingError,
    WorkerHangError,
    WorkerLostError,
    WorkerMemoryError,
)
from tests.launchers import jobs
from tests.launchers.jobs import EXPORTS, WAITS, Run
from tests.launchers.kubernetes_stand_in import StandIn
from tests.launchers.local.test_cluster import PARAMETER_SERVERS


def test_job_is_made_followed_and_deleted(run: Run, cluster: StandIn) -> None:
    job = run(EXPORTS, options={"namespace": "team"})
    assert cluster.verbs == ["POST", "DELETE"]
    assert all("/namespaces/team/" in line for line in cluster.requests)
    assert jobs.exported(job) == ["Format-Serving"]
    assert jobs.log(job).count("this is worker 0") == 1
    assert not list(Path(job.request.model_run_dir).glob(".tfjob/*"))


@pytest.mark.parametrize(("breaks", "loses"), [(3, []), (0, ["POST"]), (0, ["DELETE"])])
def test_lost_requests_and_answers_are_survived(
    run: Run, cluster: StandIn, breaks: int, loses: list[str]
) -> None:
    cluster.instead, cluster.breaks, cluster.loses = "pass", breaks, loses
    run(EXPORTS)
    assert len(cluster.manifests) == 1
    status, _ = cluster.job(cluster.manifests[0]["metadata"]["name"])
    assert status == 404


@pytest.mark.slow
def test_servers_take_the_orders_of_the_chief(run: Run) -> None:
    job = run(PARAMETER_SERVERS, num_workers=1, parameter_servers=1)
    assert "[chief] steps: 10.0" in jobs.log(job)


KILLED = "raise SystemExit(137)"
EVICTED = {"evicted": ("Evicted", "m"), "cause": ("OOMKilled", "n")}
NO_PYTHON = ("StartError", "python: not found")


@pytest.mark.parametrize(
    ("faults", "error", "message", "jobs_made"),
    [
        ({"instead": "raise SystemExit(2)"}, DataError, "exit code 2", 1),
        ({"instead": KILLED}, WorkerLostError, "exit code 137", 2),
        ({"instead": KILLED, "cause": ("OOMKilled", "")}, WorkerMemoryError, "its memory limit", 1),
        ({"instead": KILLED, **EVICTED}, WorkerLostError, "was lost: Evicted: m", 2),
        ({"cause": NO_PYTHON}, ConfigurationError, "python: not found", 1),
        ({"cause": ("ImagePullBackOff", "none")}, ConfigurationError, "Off: none.*a/b", 1),
    ],
)
def test_exit_code_and_reason_of_the_cluster_decide_and_are_reported(
    run: Run,
    cluster: StandIn,
    faults: dict[str, Any],
    error: type[Exception],
    message: str,
    jobs_made: int,
) -> None:
    vars(cluster).update(faults)
    with pytest.raises(error, match=message) as caught:
        run(EXPORTS, max_failures=1)
    assert type(caught.value) is error
    assert cluster.verbs == ["POST", "DELETE"] * jobs_made


def test_loss_of_one_worker_is_not_taken_for_the_failure_of_another(
    run: Run, cluster: StandIn
) -> None:
    cluster.instead = """
import json, os, sys
task = json.loads(os.environ["TF_CONFIG"])["task"]
sys.exit(143 if task["index"] == 0 else 2)
"""
    # Whoever looks between the two ends sees the loss alone, and starts again.
    with pytest.raises(DataError, match="worker 1: its container"):
        run(EXPORTS, num_workers=2, max_failures=9)


NO_NODE = {"cause": ("Unschedulable", "0/3 nodes are available")}
NOT_MADE = "1 of 1 workers do not exist yet; FailedCreate: exceeded"


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        (NO_NODE, "worker-0 waits: Unschedulable: 0/3 nodes are available"),
        ({"quota": "exceeded"}, NOT_MADE),
        ({"quota": "exceeded", "owner": "-worker-0"}, NOT_MADE),
    ],
)
def test_reason_why_pods_are_not_placed_or_made_is_reported(
    run: Run,
    cluster: StandIn,
    capfd: pytest.CaptureFixture[str],
    faults: dict[str, Any],
    reason: str,
) -> None:
    vars(cluster).update(faults)
    with pytest.raises(WorkerHangError, match=reason):
        run(EXPORTS, timeout_s=0.1)
    assert reason in capfd.readouterr().err
    assert cluster.verbs == ["POST", "DELETE"]


@pytest.mark.parametrize("value", ["$(HOME) $$", "a$$(HOME)$ $HOME"])
def test_environment_reaches_the_container_literally(
    run: Run, cluster: StandIn, value: str, tmp_path: Path
) -> None:
    cluster.instead = (
        f"import os, pathlib; pathlib.Path({str(tmp_path / 'seen')!r}).write_text(os.environ['A'])"
    )
    run(EXPORTS, env={"HOME": "/there", "A": value})
    assert (tmp_path / "seen").read_text() == value


def test_job_that_a_person_deletes_is_not_made_again(run: Run, cluster: StandIn) -> None:
    cluster.instead = WAITS
    cluster.when_made = lambda: cluster.delete("tfjobs", next(iter(cluster.pods.values())).job)
    with pytest.raises(TrainingError, match="was deleted from outside") as caught:
        run(EXPORTS, max_failures=3)
    assert type(caught.value) is TrainingError
    assert len(cluster.manifests) == 1


@pytest.mark.parametrize(
    ("status", "message"),
    [(403, "rights to create, get and"), (404, "training operator"), (400, "refused")],
)
def test_refusal_says_what_is_missing(
    run: Run, cluster: StandIn, status: int, message: str
) -> None:
    cluster.refuses = status
    with pytest.raises(ConfigurationError, match=message):
        run(EXPORTS)


def test_pipeline_root_that_no_pod_sees_is_an_error_before_anything_is_made(
    run: Run, cluster: StandIn
) -> None:
    with pytest.raises(ConfigurationError, match="workers cannot see the pipeline root"):
        run(EXPORTS, options={"volumes": {"claim": "/pipelines"}})
    assert cluster.requests == []


def test_cluster_that_is_not_configured_is_an_error(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match="finds no Kubernetes cluster"):
        run(EXPORTS)
