"""Custom jobs of Vertex AI: what is asked for, how they are followed, retried and cancelled."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud.aiplatform_v1.types import AcceleratorType, Scheduling

from generic_trainer.errors import (
    ConfigurationError,
    DataError,
    TrainingError,
    WorkerLostError,
    WorkerMemoryError,
)
from generic_trainer.launchers import Distribution, Job, VertexOptions, launch
from generic_trainer.launchers._vertex.custom_job import LABEL, cluster_variables, custom_job
from tests.launchers import jobs
from tests.launchers.vertex_stand_in import VertexStandIn, vertex_stand_in

Run = Callable[..., Job]

OPTIONS = {"image": "example/trainer:1", "project": "my-project", "region": "us-central1"}
EXPORTS = """
def run_fn(fn_args):
    print("this is worker 0")
    export(fn_args.serving_model_dir)
"""
WAITS = "import signal; signal.pause()"


def distribution(options: dict[str, Any] | None = None, **fields: Any) -> Distribution:
    vertex = VertexOptions(**{**OPTIONS, **(options or {})})
    return Distribution(launcher="vertex", vertex=vertex, **{"max_failures": 0, **fields})


@pytest.fixture
def vertex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VertexStandIn]:
    """Vertex AI, with nothing in it."""
    monkeypatch.setattr("generic_trainer.launchers._vertex.service.CustomJobs.poll_s", 0.2)
    folder = tmp_path / "vertex"
    folder.mkdir()
    with vertex_stand_in(folder) as stand_in:
        yield stand_in


@pytest.fixture
def run(vertex: VertexStandIn, examples: Path, tmp_path: Path) -> Run:
    """Runs a module's source on the stand-in."""

    def run(source: str = EXPORTS, **wanted: Any) -> Job:
        job = jobs.make_job(tmp_path, examples, source, distribution=distribution(**wanted))
        launch(job)
        return job

    return run


def test_job_asks_for_what_the_distribution_and_the_options_say(
    run: Run, vertex: VertexStandIn
) -> None:
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
                    "network": "projects/12345/global/networks/vpc",
                    "tensorboard": "projects/1/locations/us-central1/tensorboards/2",
                    "scheduling": {"max_wait_duration": {"seconds": 600}},
                },
            },
        },
    )
    (job,) = vertex.made
    spec = job.job_spec
    pools = spec.worker_pool_specs
    assert [pool.replica_count for pool in pools] == [1, 3, 2]
    types = [pool.machine_spec.machine_type for pool in pools]
    assert types == ["n1-standard-8", "n1-standard-8", "e2-highmem-2"]
    assert [pool.machine_spec.accelerator_count for pool in pools] == [0, 2, 0]
    assert pools[1].machine_spec.accelerator_type == AcceleratorType.NVIDIA_TESLA_T4
    assert {pool.container_spec.image_uri for pool in pools} == {"example/trainer:1"}
    assert {e.name: e.value for e in pools[2].container_spec.env}["MINE"] == "1 $$(HOME) $$$ $x"
    disk = pools[0].disk_spec
    assert (disk.boot_disk_type, disk.boot_disk_size_gb) == ("pd-ssd", 200)
    assert spec.scheduling.strategy == Scheduling.Strategy.SPOT
    assert spec.scheduling.disable_retries and not spec.scheduling.restart_job_on_worker_restart
    assert spec.scheduling.timeout.total_seconds() == 91
    assert spec.scheduling.max_wait_duration.total_seconds() == 600
    assert spec.service_account == "t@p.iam.gserviceaccount.com"
    assert spec.network == "projects/12345/global/networks/vpc"
    assert spec.tensorboard.endswith("/2")
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
    wanted = distribution(**fields)
    sizes = [
        pool["replica_count"]
        for pool in custom_job(wanted, "name", [])["job_spec"]["worker_pool_specs"]
    ]
    cluster = {
        f"workerpool{pool}": [f"host-{pool}-{index}:2222" for index in range(size)]
        for pool, size in enumerate(sizes)
    }
    spec = {"cluster": cluster, "task": dict(zip(("type", "index"), task, strict=True))}
    monkeypatch.setenv("CLUSTER_SPEC", json.dumps(spec))
    config = json.loads(cluster_variables(wanted)["TF_CONFIG"])
    assert config["task"] == dict(zip(("type", "index"), expected, strict=True))
    own = config["cluster"][expected[0]][expected[1]]
    assert own == cluster[task[0]][task[1]]
    assert sum(map(len, config["cluster"].values())) == sum(sizes)


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


def test_job_that_a_person_cancels_is_not_made_again(run: Run, vertex: VertexStandIn) -> None:
    vertex.instead = WAITS
    vertex.when_made = lambda: vertex.end("CANCELLING")
    with pytest.raises(TrainingError, match="was cancelled from outside") as caught:
        run(max_failures=3)
    assert type(caught.value) is TrainingError
    assert vertex.calls == ["create"]


def test_exit_code_tells_the_class(run: Run, vertex: VertexStandIn) -> None:
    vertex.instead = "raise SystemExit(2)"
    with pytest.raises(DataError, match=r"exit code 2 .*See the logs"):
        run(max_failures=2)
    assert vertex.calls == ["create"]


def test_what_only_vertex_ai_knows_tells_the_class(run: Run, vertex: VertexStandIn) -> None:
    vertex.error = (8, "Replica workerpool0-0 ran out of memory.")
    with pytest.raises(WorkerMemoryError):
        run(max_failures=2)
    vertex.error = (7, "The service account has no access to the image.")
    with pytest.raises(ConfigurationError, match="no access to the image"):
        run(max_failures=2)
    assert vertex.calls == ["create"] * 2
    vertex.error = (8, "Resources are insufficient in region: us-central1.")
    with pytest.raises(WorkerLostError, match="Resources are insufficient"):
        run(max_failures=1)
    assert vertex.calls == ["create"] * 4


def test_preempted_job_is_followed_by_another_one(
    run: Run, vertex: VertexStandIn, tmp_path: Path
) -> None:
    vertex.instead = f"""
import pathlib, signal
flag = pathlib.Path({str(tmp_path / "began")!r})
if not flag.exists():
    flag.touch()
    signal.pause()
"""

    def preempt() -> None:
        if len(vertex.made) == 1:
            while not (tmp_path / "began").exists():
                pass
            vertex.end("FAILED", 10, "Spot VM was preempted.")

    vertex.when_made = preempt
    job = run(max_failures=1, options={"spot": True})
    assert vertex.calls == ["create", "create"]
    assert "Spot VM was preempted. Starting again" in jobs.log(job)


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


def test_root_that_no_replica_sees_is_an_error_before_anything_is_made(
    run: Run, vertex: VertexStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = "generic_trainer.launchers._vertex.service.CustomJobs"
    monkeypatch.setattr(f"{service}.mounts", lambda self: ["/gcs"])
    with pytest.raises(ConfigurationError, match="cannot see the pipeline root"):
        run()
    assert vertex.calls == []
