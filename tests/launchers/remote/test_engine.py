"""The engine of remote jobs with a service in memory, whose time passes without waiting."""

import dataclasses
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from generic_trainer._core.cluster import Task
from generic_trainer.errors import (
    ConfigurationError,
    TrainingError,
    WorkerHangError,
    WorkerLostError,
    WorkerMemoryError,
)
from generic_trainer.launchers import Distribution, Job, TFJobOptions
from generic_trainer.launchers._job import JobFolder
from generic_trainer.launchers._remote.engine import RemoteEngine
from generic_trainer.launchers._remote.service import (
    FENCE_POLL_S,
    JobStatus,
    RemoteService,
    TaskStatus,
    TooEarlyError,
)
from generic_trainer.launchers._supervisor import supervise
from generic_trainer.launchers._worker_end import WorkerEnd
from tests.launchers.fake_engine import job_for, lost, terminate

WORKER = Task("worker", 0)
DONE = JobStatus("succeeded", tasks={WORKER: TaskStatus("pod-0", "succeeded")})


def with_worker(phase: Any, *details: Any) -> JobStatus:
    return JobStatus(tasks={WORKER: TaskStatus("pod-0", phase, *details)})


RUNS = with_worker("running")
LOST = with_worker("failed", 143, "Error")


class Refused(Exception):
    status = 403


class Memory(RemoteService):
    """A service that does what its script says.

    Attributes:
        script: state of the current job after each second, or an error. The last one lasts.
        calls: names of all calls that change something, with the number of the job.
        jobs: names of the jobs that run.
        made: names of all jobs.
        now_s: the time.
        away: times, from and to, in which no call is answered.
        leaves_for_s: how long no call is answered after the next `look`.
        loses: names of methods whose next call is carried out and not answered.
        early_s: how long a job is refused because its objects are not seen yet.
        lost: numbers of jobs whose workers do not end, because their node is lost.
        asks: called by each `look`.
    """

    provider, kind, poll_s, permissions = "Kubernetes", "TFJob", 1.0, "create on tfjobs"
    remedy = "See the image."

    def __init__(self, *script: JobStatus | Exception) -> None:
        self.script: list[Any] = [*script]
        self.calls: list[str] = []
        self.jobs: list[str] = []
        self.made: list[str] = []
        self.now_s = self.leaves_for_s = 0.0
        self.away: list[tuple[float, float]] = []
        self.loses: list[str] = []
        self.early_s = 0.0
        self.lost: list[int] = []
        self.asks: Callable[[], object] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def mounts(self) -> Collection[str]:
        return ["/"]

    def create(self, name: str, distribution: Distribution, folder: JobFolder, digest: str) -> None:
        if name not in self.made:
            self._check_that_it_answers()
            if self.now_s < self.early_s:
                raise TooEarlyError("runtime not found")
            self.made.append(name)
            self.jobs.append(name)
            self.calls.append(f"create {len(self.made)}")
        self._lose("create")

    def look(self, name: str, folder: JobFolder) -> JobStatus:
        self.folder = folder
        self._check_that_it_answers()
        self.asks()
        status = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        self.away.append((self.now_s, self.now_s + self.leaves_for_s))
        self.leaves_for_s = 0.0
        if isinstance(status, Exception):
            raise status
        return status

    def delete(self, name: str) -> None:
        self._check_that_it_answers()
        if name in self.jobs:
            self.jobs.remove(name)
            self.calls.append(f"delete {1 + self.made.index(name)}")
        self._lose("delete")

    def has_ended(self, name: str) -> bool:
        self._check_that_it_answers()
        return name not in self.jobs and name not in [self.made[one - 1] for one in self.lost]

    def log(self, name: str, task: Task) -> tuple[str, Iterator[str]]:
        return name, iter(())

    def delete_command(self, name: str) -> str:
        return f"kubectl delete tfjob {name}"

    def workers_command(self, name: str) -> str:
        return f"kubectl get pods -l {name}"

    def _lose(self, method: str) -> None:
        if method in self.loses:
            self.loses.remove(method)
            raise ConnectionError("connection reset")

    def _check_that_it_answers(self) -> None:
        if any(start <= self.now_s < end for start, end in self.away):
            raise ConnectionError("connection refused")


Run = Callable[..., Job]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Supervises a job on a service in memory."""

    def run(service: Memory, **fields: Any) -> Job:
        wanted = {"launcher": "tfjob", "tfjob": TFJobOptions(image="image"), **fields}
        job = job_for(Distribution(**wanted))
        request = dataclasses.replace(job.request, model_run_dir=str(tmp_path / "run"))
        job = dataclasses.replace(job, request=request)

        def clock() -> float:
            return service.now_s

        def engine_for(job: Job) -> RemoteEngine:
            return RemoteEngine(job, service, clock=clock, sleep=service.sleep)

        supervise(job, engine_for, clock=clock)
        return job

    return run


def test_service_that_is_away_is_waited_for_and_gets_no_second_job(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    service = Memory(RUNS, RUNS, DONE)
    service.away = [(1.0, 1000.0)]
    run(service)
    assert service.calls == ["create 1", "delete 1"]
    warnings = [text for text in caplog.messages if "does not answer" in text]
    assert 5 < len(warnings) < 15


def test_time_limit_and_sigterm_hold_while_the_service_is_away(run: Run) -> None:
    service = Memory(RUNS)
    service.away = [(1.0, 400.0)]
    with pytest.raises(WorkerHangError, match="Kubernetes has not answered for the last 3"):
        run(service, timeout_s=380.0, preemption_grace_s=0.0)
    assert service.calls == ["create 1", "delete 1"]
    service = Memory(RUNS)
    service.asks, service.away = terminate, [(0.5, 20.0)]
    with pytest.raises(WorkerLostError, match="SIGTERM"):
        run(service)
    assert service.calls == ["create 1", "delete 1"]


def test_job_that_could_not_be_deleted_is_deleted_before_the_next_attempt(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    service = Memory(LOST, DONE)
    service.leaves_for_s = 200.0
    run(service)
    assert service.calls == ["create 1", "delete 1", "create 2", "delete 2"]
    assert "may still run" in caplog.text


def test_job_that_cannot_be_deleted_at_all_is_named_with_the_command(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    service = Memory(DONE)
    service.leaves_for_s = 1e9
    run(service)  # which ended well
    assert f"`kubectl delete tfjob {service.made[0]}`" in caplog.text


def test_job_whose_deletion_is_not_answered_is_deleted_at_the_end(run: Run) -> None:
    service = Memory(DONE)
    service.leaves_for_s = 55.5  # more than is waited for after the attempt
    run(service)
    assert service.jobs == []


def test_workers_of_a_lost_node_are_fenced_before_the_next_attempt_and_named(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    service = Memory(LOST, RUNS, DONE)
    service.lost, folders, ends = [1], [], []

    def note() -> None:  # the folder, and since when that of the first job is gone
        folders.append(service.folder)
        if folders[0].is_deleted():
            ends.append(service.now_s)

    service.asks = note
    delete = JobFolder.delete
    with mock.patch.object(JobFolder, "delete", autospec=True) as deleted:
        deleted.side_effect = lambda folder: (ends.append(service.now_s), delete(folder))
        run(service)
    assert service.calls == ["create 1", "delete 1", "create 2", "delete 2"]
    assert ends[1] - ends[0] > 2 * FENCE_POLL_S
    assert f"{service.made[0]} may still run" in caplog.text
    assert f"`kubectl get pods -l {service.made[0]}`" in caplog.text


@pytest.mark.parametrize("early_s", [3.0, 40.0])
def test_job_whose_objects_are_not_seen_yet_is_made_again_for_a_while(
    run: Run, early_s: float
) -> None:
    service = Memory(DONE)
    service.early_s = early_s
    if early_s < 30.0:
        run(service)
        assert service.calls == ["create 1", "delete 1"]
    else:
        with pytest.raises(ConfigurationError, match=r"refused the TFJob .* runtime not found"):
            run(service)
        assert service.now_s < early_s


@pytest.mark.parametrize("method", ["create", "delete"])
def test_lost_answer_makes_no_second_job_and_leaves_none(run: Run, method: str) -> None:
    service = Memory(DONE)
    service.loses = [method]
    run(service)
    assert service.calls == ["create 1", "delete 1"]


def test_service_that_never_answers_or_refuses_is_an_error(run: Run) -> None:
    service = Memory(DONE)
    service.away = [(0.0, 1e9)]
    with pytest.raises(ConfigurationError, match=r"connection refused.*create on tfjobs"):
        run(service)
    service = Memory(Refused("pods is forbidden"))
    with pytest.raises(ConfigurationError, match="pods is forbidden"):
        run(service)
    assert service.calls == ["create 1", "delete 1"]


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (JobStatus("deleted", tasks=LOST.tasks), TrainingError, "was deleted from outside"),
        (JobStatus("cancelled", tasks=LOST.tasks), TrainingError, "was cancelled from outside"),
        (JobStatus("expired", "too slow", LOST.tasks), WorkerHangError, "too slow"),
        (with_worker("stuck", 128, "No", "python"), ConfigurationError, "No: python.*See the"),
        (with_worker("failed", 137, "OOMKilled"), WorkerMemoryError, "exceeded its memory limit"),
        (with_worker("failed", 3, "Error", "x"), TrainingError, "exit code 3 .*: Error: x"),
    ],
)
def test_end_that_another_attempt_does_not_mend_is_final(
    run: Run, status: JobStatus, error: type[Exception], message: str
) -> None:
    service = Memory(RUNS, status)
    with pytest.raises(error, match=message) as caught:
        run(service)
    assert type(caught.value) is error
    assert service.calls == ["create 1", "delete 1"]


def test_reason_of_the_cluster_reaches_the_user(run: Run) -> None:
    service = Memory(with_worker("failed", None, "Evicted", "The node was low on memory."))
    with pytest.raises(WorkerLostError, match="was lost: Evicted: The node was low on memory"):
        run(service, max_failures=1)
    assert len(service.made) == 2
    service.asks = lambda: lost().write(service.folder._file("worker-0"))
    with pytest.raises(WorkerLostError, match=r"was lost \(Evicted: The node was low"):
        run(service, max_failures=0)


def test_what_is_waited_for_is_logged_when_it_changes(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    unplaced = with_worker("waiting", None, "Unschedulable", "0/3 nodes are available")
    pulls = with_worker("waiting", None, "ContainerCreating")
    suspended = JobStatus("suspended", "by a queue")
    unmade = JobStatus(warnings="FailedCreate: exceeded quota")
    run(Memory(unmade, unplaced, unplaced, pulls, RUNS, suspended, RUNS, DONE))
    records = [record for record in caplog.records if " generic-trainer-" in record.getMessage()]
    states = [(r.levelname, r.getMessage().partition(": ")[2]) for r in records if r.args]
    assert [state for state in states if state[1]] == [
        ("WARNING", "1 of 1 workers do not exist yet; FailedCreate: exceeded quota"),
        ("WARNING", "pod-0 waits: Unschedulable: 0/3 nodes are available"),
        ("INFO", "pod-0 waits: ContainerCreating"),
        ("INFO", "all workers have started"),
        ("WARNING", "suspended, waiting to be resumed; by a queue"),
        ("INFO", "all workers have started"),
    ]


def test_folder_that_cannot_be_deleted_fails_no_run(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(JobFolder, "delete", mock.Mock(side_effect=OSError("permission denied")))
    run(Memory(DONE))
    assert "could not be deleted: permission denied" in caplog.text


def test_ends_of_a_suspension_are_forgotten(run: Run) -> None:
    ends: list[WorkerEnd | None] = []
    service = Memory(RUNS, JobStatus("suspended"), RUNS, DONE)

    def write_or_read() -> None:
        if service.script[0] is RUNS:
            lost().write(service.folder.end_of(WORKER))
        ends.append(WorkerEnd.read(service.folder.end_of(WORKER)))

    service.asks = write_or_read
    run(service)
    assert ends[-1] is None
