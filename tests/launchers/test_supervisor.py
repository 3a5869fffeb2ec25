"""What all engines have in common: attempts, the deadline, the stop, the root cause, the error."""

from typing import Any
from unittest import mock

import pytest

from generic_trainer._core.cluster import Task
from generic_trainer.errors import (
    ConfigurationError,
    DataError,
    GenericTrainerError,
    TrainingError,
    WorkerHangError,
    WorkerLostError,
)
from generic_trainer.launchers import Distribution, Failure
from generic_trainer.launchers._supervisor import supervise, supervise_task
from generic_trainer.launchers._worker_end import WorkerEnd, WorkerTraceback
from tests.launchers.fake_engine import FakeEngine, job_for, lost, succeeded, terminate


def run(engine: FakeEngine, **fields: Any) -> None:
    job = job_for(Distribution(launcher="local", **fields))
    supervise(job, engine.open, clock=engine.clock)


def wrong(task: str, **fields: Any) -> WorkerEnd:
    end = WorkerEnd.of(TrainingError(f"{task} is wrong"), task)
    return WorkerEnd(**{**vars(end), **fields})


def test_run_is_over_when_the_chief_has_done_its_part() -> None:
    engine = FakeEngine([None, succeeded()])
    run(engine)
    assert engine.calls == ["start", "kill", "close"]


def test_others_may_finish_for_a_while_and_servers_need_not() -> None:
    engine = FakeEngine([succeeded(), None, succeeded("worker 1")])
    run(engine, num_workers=2)
    assert engine.now_s == 3.0
    engine = FakeEngine([succeeded("chief")])
    run(engine, num_workers=1, parameter_servers=1)
    assert engine.now_s == 1.0


def test_worker_that_works_on_is_stopped_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine([succeeded()])
    run(engine, num_workers=3, worker_grace_s=7, timeout_s=3)  # the model is there
    assert engine.now_s == 8.0
    assert engine.calls == ["start", "diagnose", "kill", "close"]
    message = "worker 1, worker 2 still worked 7 s later (worker_grace_s) and was stopped"
    assert message in caplog.text
    assert "They were in run_fn." in caplog.text


def test_nothing_that_happens_after_the_end_of_the_chief_spoils_the_run() -> None:
    for event in (wrong("worker 1"), terminate):
        engine = FakeEngine([succeeded(), event])
        run(engine, num_workers=2)
        assert engine.now_s == 2.0


def test_a_failure_to_clean_up_does_not_fail_a_run_that_succeeded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fails = mock.Mock(side_effect=WorkerLostError("the fork server was killed"))
    engine = FakeEngine([succeeded(), fails])
    engine.kill = fails  # type: ignore[method-assign]
    run(engine, num_workers=2)
    assert engine.calls == ["start", "close"]
    assert caplog.text.count("export: the fork server was killed") == 2


def test_lost_workers_are_replaced_as_often_as_allowed(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine([lost()], [None, lost()], [succeeded()])
    run(engine, max_failures=2)
    assert engine.calls == ["start", "kill"] * 3 + ["close"]
    assert "was lost Starting again" in caplog.text
    assert "failure 2 of the 2 that max_failures allows" in caplog.text
    engine = FakeEngine([lost()], [lost()], [succeeded()])
    with pytest.raises(WorkerLostError, match="was lost"):
        run(engine, max_failures=1)


@pytest.mark.parametrize("failure", [each for each in Failure if each is not Failure.LOST])
def test_nothing_else_is_tried_again(failure: Failure) -> None:
    end = WorkerEnd(task="worker 0", failure=failure, error=failure.error.__name__, message="no")
    engine = FakeEngine([end], [succeeded()])
    with pytest.raises(failure.error):
        run(engine)
    assert engine.calls == ["start", "kill", "close"]


def test_root_cause_is_waited_for_and_told_from_its_consequences() -> None:
    engine = FakeEngine([wrong("worker 0", may_be_consequence=True), None, wrong("worker 1")])
    with pytest.raises(TrainingError, match=r"^worker 1: worker 1 is wrong") as caught:
        run(engine, num_workers=2)
    assert caught.value.worker == "worker 1"


def test_workers_that_have_only_missed_each_other_are_lost() -> None:
    ends = [wrong(task, may_be_consequence=True) for task in ("worker 0", "worker 1")]
    message = r"have lost each other\. worker 0: worker 0 is wrong"
    with pytest.raises(WorkerLostError, match=message):
        run(FakeEngine(ends), num_workers=2, max_failures=0)
    crash = wrong("worker 0", may_be_consequence=True, fields={"signal": "SIGABRT"})
    with pytest.raises(TrainingError) as caught:
        run(FakeEngine([crash]), max_failures=0)
    assert (type(caught.value), caught.value.signal) == (TrainingError, "SIGABRT")


def test_time_counts_over_all_attempts() -> None:
    engine = FakeEngine([None, None, lost()], [])
    with pytest.raises(WorkerHangError, match=r"timeout_s=5 and was stopped. They were in run_fn"):
        run(engine, timeout_s=5)
    assert engine.now_s == 6.0
    assert engine.calls == ["start", "kill", "start", "diagnose", "kill", "close"]


def test_sigterm_stops_the_run_and_there_is_no_other_attempt() -> None:
    engine = FakeEngine([None, terminate], [succeeded()])
    with pytest.raises(WorkerLostError, match="and its workers were asked to save and end"):
        run(engine)
    assert engine.calls == ["start", "stop", "kill", "close"]
    engine = FakeEngine([terminate], obeys=False)
    with pytest.raises(WorkerLostError, match=r"worker 0, worker 1 took longer than 4 s"):
        run(engine, num_workers=2, preemption_grace_s=4)
    assert engine.now_s == 5.0


def test_tasks_that_cannot_be_started_are_cleaned_up() -> None:
    engine = FakeEngine()
    engine.start = mock.Mock(side_effect=ConfigurationError("no room"))  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError):
        run(engine)
    assert engine.calls == ["kill", "close"]


@pytest.mark.parametrize(
    "error",
    [
        DataError("broken", path="/data/1", record=7, feature="x"),
        TrainingError("crashed", signal="SIGSEGV", exit_code=-11),
        ConfigurationError("wrong", path="/config", problems=("a", "b")),
    ],
)
def test_error_keeps_its_fields_on_its_way(error: GenericTrainerError, tmp_path: Any) -> None:
    WorkerEnd.of(error, "worker 1").write(str(tmp_path / "end"))
    end = WorkerEnd.read(str(tmp_path / "end"))
    assert end is not None
    arrived = end.to_error(named=True)
    assert type(arrived) is type(error)
    assert str(arrived) == f"worker 1: {error}"
    details = dict(arrived.details)
    assert details.pop("worker", "worker 1") == "worker 1"
    assert details == error.details
    assert isinstance(arrived.__cause__, WorkerTraceback)
    assert str(error) in str(arrived.__cause__)
    assert WorkerEnd.of(arrived).traceback == end.traceback


def test_field_that_cannot_be_sent_stays_behind() -> None:
    end = WorkerEnd.of(DataError("broken", path="/data/1", feature=lambda: None))  # type: ignore
    assert end.fields == {"path": "/data/1"}


def test_worker_that_said_nothing_is_noted_as_such(tmp_path: Any) -> None:
    assert WorkerEnd.read(str(tmp_path / "none")) is None
    (tmp_path / "broken").write_text("{")
    assert WorkerEnd.read(str(tmp_path / "broken")) is None


@pytest.mark.parametrize(
    ("end", "is_consequence"),
    [
        (wrong("worker 0"), False),
        (wrong("worker 0", fields={"signal": "SIGABRT"}), True),
        (wrong("worker 0", may_be_consequence=True), True),
    ],
)
def test_task_of_a_cluster_says_that_it_may_only_miss_others(
    end: WorkerEnd, is_consequence: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    job = job_for(Distribution(launcher="ray", num_workers=2, env={"A": "b"}, heartbeat_s=9))
    engine = FakeEngine([end])
    found = supervise_task(job, Task("worker", 1), engine.open)
    assert (found.task, found.may_be_consequence) == ("worker 1", is_consequence)
    assert engine.job.distribution.env == {"A": "b"}
    assert engine.job.distribution.heartbeat_s is None  # it may well wait for worker 0
