"""Custom jobs of Vertex AI: what is asked for, how they are followed, retried and cancelled."""

from __future__ import annotations

import functools
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from generic_trainer.errors import (
    ConfigurationError,
    DataError,
    TrainingError,
    WorkerLostError,
    WorkerMemoryError,
)
from generic_trainer.launchers import Distribution, VertexOptions
from generic_trainer.launchers._distribution import tasks
from generic_trainer.launchers._failures import Failure
from generic_trainer.launchers._job import JobFolder
from generic_trainer.launchers._vertex import LABEL, CustomJobs, cluster_variables, custom_job
from generic_trainer.launchers._worker_end import WorkerEnd
from tests.launchers import jobs
from tests.launchers.jobs import EXPORTS, WAITS, Run, runner

if TYPE_CHECKING:  # Google's client takes seconds to import
    from tests.launchers.vertex_stand_in import VertexStandIn

OPTIONS = {"image": "example/trainer:1", "project": "my-project", "region": "us-central1"}
NETWORK = "projects/12345/global/networks/vpc"
TENSORBOARD = "projects/1/locations/us-central1/tensorboards/2"


@pytest.fixture
def vertex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VertexStandIn]:
    """Vertex AI, with nothing in it."""
    from tests.launchers.vertex_stand_in import vertex_stand_in

    monkeypatch.setattr("generic_trainer.launchers._vertex.CustomJobs.poll_s", 0.2)
    folder = tmp_path / "vertex"
    folder.mkdir()
    with vertex_stand_in(folder) as stand_in:
        yield stand_in


@pytest.fixture
def run(vertex: VertexStandIn, examples: Path, tmp_path: Path) -> Run:
    """Runs a module on the stand-in."""
    return functools.partial(runner(tmp_path, examples, "vertex", **OPTIONS), EXPORTS)


def test_job_asks_for_what_the_distribution_and_the_options_say(
    run: Run, vertex: VertexStandIn
) -> None:
    from google.cloud.aiplatform_v1.types import AcceleratorType, DiskSpec, Scheduling

    vertex.instead = "pass"
    run(
        num_workers=3,
        parameter_servers=2,
        gpus_per_worker=2,
        gpu_type="NVIDIA_TESLA_T4",
        timeout_s=90.5,
        env={"MINE": "1 $(HOME) $$ $x"},
        options={
            "machine_type": "n1-standard-8",
            "spot": True,
            "service_account": "t@p.iam.gserviceaccount.com",
            "labels": {"cost": "research"},
            "custom_job": {
                "encryption_spec": {"kms_key_name": "key"},
                "job_spec": {
                    "worker_pool_specs": [
                        {"disk_spec": {"boot_disk_type": "pd-ssd", "boot_disk_size_gb": 200}},
                        {},
                        {"machine_spec": {"machine_type": "e2-highmem-2"}},
                    ],
                    "network": NETWORK,
                    "tensorboard": TENSORBOARD,
                    "scheduling": {"max_wait_duration": {"seconds": 600}},
                },
            },
        },
    )
    (job,) = vertex.made
    spec, pools = job.job_spec, job.job_spec.worker_pool_specs
    machines = [pool.machine_spec for pool in pools]
    assert [
        (pool.replica_count, machine.machine_type, machine.accelerator_count)
        for pool, machine in zip(pools, machines, strict=True)
    ] == [(1, "n1-standard-8", 0), (3, "n1-standard-8", 2), (2, "e2-highmem-2", 0)]
    assert machines[1].accelerator_type == AcceleratorType.NVIDIA_TESLA_T4
    assert {pool.container_spec.image_uri for pool in pools} == {"example/trainer:1"}
    assert {e.name: e.value for e in pools[2].container_spec.env}["MINE"] == "1 $$(HOME) $$$ $x"
    assert pools[0].disk_spec == DiskSpec(boot_disk_type="pd-ssd", boot_disk_size_gb=200)
    assert spec.scheduling == Scheduling(
        strategy="SPOT",
        disable_retries=True,
        timeout={"seconds": 91},
        max_wait_duration={"seconds": 600},
    )
    assert spec.service_account == "t@p.iam.gserviceaccount.com"
    assert (spec.network, spec.tensorboard) == (NETWORK, TENSORBOARD)
    assert dict(job.labels) == {"cost": "research", LABEL: job.display_name}
    assert job.encryption_spec.kms_key_name == "key"
    assert job.name.startswith("projects/my-project/locations/us-central1/")


@pytest.mark.parametrize(
    ("fields", "task", "expected"),
    [
        ({"num_workers": 3}, ("workerpool1", 1), ("worker", 2)),
        ({"num_workers": 2, "chief": True}, ("workerpool0", 0), ("chief", 0)),
        ({"num_workers": 2, "chief": True}, ("workerpool1", 0), ("worker", 0)),
        ({"num_workers": 1, "parameter_servers": 2}, ("workerpool2", 1), ("ps", 1)),
    ],
)
def test_replica_finds_its_task(
    fields: dict[str, Any],
    task: tuple[str, int],
    expected: tuple[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = Distribution(launcher="vertex", vertex=VertexOptions(**OPTIONS), **fields)
    specs = custom_job(wanted, "name", [])["job_spec"]["worker_pool_specs"]
    cluster = {
        f"workerpool{pool}": [f"host-{pool}-{index}:2222" for index in range(spec["replica_count"])]
        for pool, spec in enumerate(specs)
    }
    spec = {"cluster": cluster, "task": dict(zip(("type", "index"), task, strict=True))}
    monkeypatch.setenv("CLUSTER_SPEC", json.dumps(spec))
    config = json.loads(cluster_variables(wanted)["TF_CONFIG"])
    assert config["task"] == dict(zip(("type", "index"), expected, strict=True))
    own = config["cluster"][expected[0]][expected[1]]
    assert own == cluster[task[0]][task[1]]
    assert sum(map(len, config["cluster"].values())) == sum(map(len, cluster.values()))


@pytest.mark.parametrize("fault", ["breaks", "loses"])
def test_job_is_made_once_followed_and_left_in_the_list(
    run: Run, vertex: VertexStandIn, fault: str
) -> None:
    vertex.instead = "pass"
    setattr(vertex, fault, 1)
    job = run()
    assert vertex.calls == ["create"]
    assert "does not answer" in jobs.log(job)
    assert not list(Path(job.request.model_run_dir).glob(".vertex/*"))


@pytest.mark.parametrize(
    ("state", "code", "message", "error", "jobs_made"),
    [
        ("CANCELLING", 0, "was cancelled from outside", TrainingError, 1),
        ("FAILED", 8, "Replica workerpool0-0 ran out of memory.", WorkerMemoryError, 1),
        ("FAILED", 7, "The account has no access to the image.", ConfigurationError, 1),
        ("FAILED", 8, "Resources are insufficient in region.", WorkerLostError, 2),
        ("FAILED", 10, "Spot VM was preempted.", WorkerLostError, 2),
    ],
)
def test_end_that_only_vertex_ai_knows_determines_the_class(
    run: Run,
    vertex: VertexStandIn,
    state: str,
    code: int,
    message: str,
    error: type[Exception],
    jobs_made: int,
) -> None:
    vertex.instead = WAITS
    vertex.when_made = lambda: vertex.end(state, code, message)
    with pytest.raises(error, match="exceeded" if "memory" in message else message) as caught:
        run(max_failures=1)
    assert type(caught.value) is error
    assert vertex.calls == ["create"] * jobs_made


def test_exit_code_determines_the_class(run: Run, vertex: VertexStandIn) -> None:
    vertex.instead = "raise SystemExit(2)"
    with pytest.raises(DataError, match=r"exit code 2 .*See the logs"):
        run(max_failures=2)
    assert vertex.calls == ["create"]


def test_sigterm_cancels_the_job(run: Run, vertex: VertexStandIn) -> None:
    vertex.instead = WAITS
    vertex.when_made = lambda: os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(WorkerLostError, match="SIGTERM"):
        run(max_failures=3)
    assert vertex.calls == ["create", "cancel"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": {"Cost": "Research"}}, "label 'Cost'"),
        ({"custom_job": {"job_spec": {"color": "red"}}}, "not a CustomJob of Vertex AI.*color"),
        ({"custom_job": {"job_spec": {"worker_pool_specs": [{}, {}]}}}, "expected 1 worker pools"),
    ],
)
def test_job_that_is_refused_says_why(run: Run, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run(options=options)


def test_a_chief_that_has_exported_has_succeeded_before_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that misses it fails meanwhile, which must not start all of them anew."""
    running = SimpleNamespace(name="n", state=SimpleNamespace(name="JOB_STATE_RUNNING"))
    running.error = SimpleNamespace(message="", code=0)
    monkeypatch.setattr("generic_trainer.launchers._vertex.job_client", lambda region: None)
    monkeypatch.setattr(CustomJobs, "_jobs", lambda self, name: [running])
    wanted = Distribution(launcher="vertex", num_workers=2, vertex=VertexOptions(**OPTIONS))
    folder = JobFolder(str(tmp_path))
    chief, worker = tasks(wanted)
    WorkerEnd(task=chief.name).write(folder.end_of(chief))
    WorkerEnd(task=worker.name, failure=Failure.LOST).write(folder.end_of(worker))
    status = CustomJobs(wanted).look("n", folder)
    assert {task: each.phase for task, each in status.tasks.items()} == {
        chief: "succeeded",
        worker: "failed",
    }
