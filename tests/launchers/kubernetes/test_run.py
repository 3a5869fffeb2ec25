"""Making, watching, retrying and deleting jobs of Kubernetes, TFJobs for the most part."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from generic_trainer.errors import (
    ConfigurationError,
    DataError,
    ExportError,
    TrainingError,
    WorkerDiskError,
    WorkerHangError,
    WorkerLostError,
    WorkerMemoryError,
)
from generic_trainer.launchers import Job
from tests.launchers import jobs
from tests.launchers.kubernetes_stand_in import StandIn
from tests.launchers.local.test_cluster import PARAMETER_SERVERS

Run = Callable[..., Job]

EXPORTS = """
def run_fn(fn_args):
    print("this is worker 0")
    export(fn_args.serving_model_dir)
"""
WAITS = "import signal; signal.pause()"


def verbs(cluster: StandIn) -> list[str]:
    """Returns the requests that change something."""
    return [line.split()[0] for line in cluster.requests if not line.startswith("GET")]


def test_job_is_made_followed_and_deleted(run: Run, cluster: StandIn) -> None:
    job = run(EXPORTS, options={"namespace": "team"})
    assert verbs(cluster) == ["POST", "DELETE"]
    assert all("/namespaces/team/" in line for line in cluster.requests)
    assert jobs.exported(job) == ["Format-Serving"]
    assert jobs.log(job).count("this is worker 0") == 1
    assert not list(Path(job.request.model_run_dir).glob(".tfjob/*"))


def test_broken_connections_are_survived(run: Run, cluster: StandIn) -> None:
    cluster.breaks = 3
    job = run(EXPORTS)
    assert jobs.exported(job) == ["Format-Serving"]
    assert "does not answer" in jobs.log(job)


def test_kept_job_stays(run: Run, cluster: StandIn) -> None:
    run(EXPORTS, options={"keep_job": True})
    assert verbs(cluster) == ["POST"]


@pytest.mark.slow
def test_servers_take_the_orders_of_the_chief(run: Run) -> None:
    job = run(PARAMETER_SERVERS, num_workers=1, parameter_servers=1)
    assert "[chief] steps: 10.0" in jobs.log(job)


@pytest.mark.parametrize("code", [130, 137, 138, 143])
def test_lost_worker_is_retried(run: Run, cluster: StandIn, code: int, tmp_path: Path) -> None:
    flag = tmp_path / "lost"
    cluster.instead = f"""
import pathlib, sys
flag = pathlib.Path({str(flag)!r})
if not flag.exists():
    flag.touch()
    sys.exit({code})
"""
    run(EXPORTS, max_failures=1)
    assert verbs(cluster) == ["POST", "DELETE", "POST", "DELETE"]


def test_worker_that_is_lost_too_often_ends_the_run(run: Run, cluster: StandIn) -> None:
    cluster.instead = "raise SystemExit(143)"
    with pytest.raises(WorkerLostError, match=r"exit code 143 \(SIGTERM\)"):
        run(EXPORTS, max_failures=1)
    assert verbs(cluster) == ["POST", "DELETE"] * 2


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (1, TrainingError),
        (2, DataError),
        (126, ExportError),
        (127, WorkerHangError),
        (74, WorkerDiskError),
        (128, WorkerMemoryError),
        (139, TrainingError),
    ],
)
def test_other_exit_codes_are_final_and_tell_the_class(
    run: Run, cluster: StandIn, code: int, error: type[Exception]
) -> None:
    cluster.instead = f"raise SystemExit({code})"
    with pytest.raises(error, match=f"exit code {code}") as caught:
        run(EXPORTS, max_failures=2)
    assert type(caught.value) is error
    assert verbs(cluster) == ["POST", "DELETE"]


def test_error_of_user_code_has_its_traceback(run: Run) -> None:
    with pytest.raises(TrainingError, match="no such layer") as caught:
        run("def run_fn(fn_args):\n    raise ValueError('no such layer')", max_failures=2)
    assert "trainer.py" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("reason", "error", "jobs_made"),
    [("OOMKilled", WorkerMemoryError, 1), ("Error", WorkerLostError, 2)],
)
def test_pod_that_is_killed_is_told_by_the_reason(
    run: Run, cluster: StandIn, reason: str, error: type[Exception], jobs_made: int
) -> None:
    cluster.terminated = reason
    cluster.instead = "import os; os.kill(os.getpid(), 9)"
    with pytest.raises(error, match="its container"):
        run(EXPORTS, max_failures=1)
    assert verbs(cluster) == ["POST", "DELETE"] * jobs_made


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


def test_image_that_cannot_be_pulled_is_an_error_at_once(run: Run, cluster: StandIn) -> None:
    cluster.waits_for = "ImagePullBackOff"
    with pytest.raises(ConfigurationError, match=r"ImagePullBackOff.*so says the test.*example/"):
        run(EXPORTS)
    assert verbs(cluster) == ["POST", "DELETE"]


def test_pods_that_never_start_are_named_when_the_time_is_up(run: Run, cluster: StandIn) -> None:
    cluster.waits_for = "Unschedulable"
    with pytest.raises(WorkerHangError, match=r"worker-0 waits: Unschedulable .so says the test"):
        run(EXPORTS, timeout_s=0.1)
    assert verbs(cluster) == ["POST", "DELETE"]


def test_sigterm_deletes_the_job(run: Run, cluster: StandIn) -> None:
    cluster.instead = WAITS
    cluster.when_made = lambda: os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(WorkerLostError, match="SIGTERM"):
        run(EXPORTS, max_failures=3)
    assert verbs(cluster) == ["POST", "DELETE"]
    assert all(pod.code is not None for pod in cluster.pods.values())


def test_job_that_somebody_deletes_ends_the_run(run: Run, cluster: StandIn) -> None:
    cluster.instead = WAITS
    cluster.when_made = lambda: cluster.delete("tfjobs", next(iter(cluster.pods.values())).job)
    with pytest.raises(WorkerLostError, match="deleted the TFJob"):
        run(EXPORTS)


@pytest.mark.parametrize(
    ("status", "message"),
    [(403, "needs create, get and"), (404, "training operator"), (500, "refused")],
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
