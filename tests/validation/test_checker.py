"""The checking process: what it reports, and what it survives."""

import dataclasses
import itertools
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow_metadata.proto.v0 import schema_pb2

from generic_trainer._core import machine
from generic_trainer.errors import WorkerLostError, WorkerMemoryError
from generic_trainer.launchers import exit_code
from generic_trainer.validation import Checker, ServingContract, ValidationReport, all_checks
from generic_trainer.validation import _checker as checker_module
from generic_trainer.validation._check import Result
from generic_trainer.validation._checker import PartialReport, _EarlyEnd
from generic_trainer.validation._runner import _memory_limit_mb
from tests.house import run_python
from tests.validation import models
from tests.validation.broken_rows import BY_BOTH, RECIPES
from tests.validation.catalogue.sources import FAULTS
from tests.validation.conftest import Check
from tests.validation.recipes import Features, scoring

NAMES = [check.name for check in all_checks()]
DYNAMIC = NAMES[NAMES.index("loads") :]


def test_a_good_model_passes_and_is_left_as_it_was(check: Check, good_model: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in good_model.rglob("*")}
    report = check(good_model)
    assert report.passed, report.summary()
    assert not report.warnings, report.warnings
    assert ValidationReport.from_json(report.to_json()) == report
    assert report.facts["signatures"] == ["serving_default"]
    assert {path: path.stat().st_mtime_ns for path in good_model.rglob("*")} == before


def test_absent_models_and_unknown_formats_are_refused(check: Check, tmp_path: Path) -> None:
    assert check(tmp_path / "absent")["presence"].status == "fail"
    (tmp_path / "model.weights").write_bytes(b"numbers")
    refused = check(tmp_path, ServingContract())["presence"]
    assert refused.status == "fail"
    assert 'format="any"' in refused.remedy
    accepted = check(tmp_path, ServingContract(format="any"))
    assert accepted.passed
    assert [result.name for result in accepted.results] == ["presence", "manifest_matches"]


def test_statistics_are_of_raw_examples(check: Check, good_model: Path, tmp_path: Path) -> None:
    recipe = RECIPES["late_value_out_of_a_range"]
    recipe.make(good_model, tmp_path / "model")
    for split in ("train", "eval"):
        (tmp_path / split).mkdir()
        file = tmp_path / split / "FeatureStats.pb"
        file.write_bytes(recipe.contract.statistics.SerializeToString())
    files = str(tmp_path / "*" / "FeatureStats.pb")
    contract = dataclasses.replace(recipe.contract, statistics=files)
    report = check(tmp_path / "model", contract)
    assert "'miles' is 70.5" in report["observed_rows"].message
    # Such as Transform writes: its numbers are no raw ones.
    schema = tmp_path / "graph" / "transformed_metadata" / "schema.pbtxt"
    schema.parent.mkdir(parents=True)
    schema.write_text('feature { name: "miles" } feature { name: "more" }')
    contract = dataclasses.replace(contract, transform_graph=str(tmp_path / "graph"))
    report = check(tmp_path / "model", contract)
    assert report.passed, report.summary()
    assert report["observed_rows"].status == "skip"
    assert "without transform_graph has them tested" in report["observed_rows"].message
    # Transform has made other numbers of the feature, under the same name.
    schema.write_text('feature { name: "miles" type: INT }')
    report = check(tmp_path / "model", contract)
    assert "'miles' is 70.5" in report["observed_rows"].message
    contract = dataclasses.replace(contract, statistics=str(tmp_path / "nowhere"))
    report = check(tmp_path / "model", contract)
    assert "No such file" in report["inputs_read"].message


def test_severities(check: Check, good_model: Path) -> None:
    for severity in ("warn", "skip", "fail"):
        severities = {"required_signatures": severity, **dict.fromkeys(DYNAMIC, "skip")}
        contract = ServingContract(signatures=("predict",), severities=severities)
        assert check(good_model, contract)["required_signatures"].status == severity


@pytest.mark.parametrize("has_schema", [True, False])
def test_mistyped_names_have_suggestions(has_schema: bool, check: Check, good_model: Path) -> None:
    schema = schema_pb2.Schema(feature=[{"name": name} for name in ("miles", "payment", "tips")])
    contract = ServingContract(
        signatures=("serving_defualt",),
        label_keys=("tip",),
        examples=models.examples(),
        schema=schema if has_schema else None,
    )
    report = check(good_model, contract)
    assert "did you mean 'serving_default'?" in report["required_signatures"].message
    result = report["without_label"]
    assert result.status == ("fail" if has_schema else "warn")
    assert "no feature 'tip' in the schema or the examples (did you mean 'tips'?)" in result.message


def test_transformed_examples_are_recognized(check: Check, good_model: Path) -> None:
    row = tf.train.Example()
    row.features.feature["miles_xf"].float_list.value.append(0.5)
    transformed = ServingContract(examples=[row.SerializeToString()] * 3)
    result = check(good_model, transformed)["schema_features"]
    assert "of which none of the 3 first examples has any" in result.message


@pytest.mark.usefixtures("no_kept_fork_servers")
def test_no_user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good_model: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("raise RuntimeError('the user shadows TensorFlow')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "tensorflow")
    with Checker() as fresh:
        assert fresh.validate(str(good_model)).passed


def _without_end(folder: Path) -> Path:
    """Saves a model whose signature never returns."""
    FAULTS["loop_that_never_ends"].make(folder, folder)
    return folder


def test_examples_of_a_process_that_died_are_kept(check: Check) -> None:
    def score(features: Features) -> tf.Tensor:
        miles, payment = features["miles"], features["payment"][:, None]
        known = tf.reduce_all(tf.reduce_any(payment == list(models.VOCABULARY), axis=1))
        return models.asserted(known, models.aborted(tf.reduce_max(miles) == 100.0, miles))

    report = check(scoring(score), BY_BOTH)
    assert "SIGABRT" in report["schema_rows"].message
    assert "example-2.pbtxt" in report["unforeseen_rows"].message
    assert list(report.failing_examples) == ["example-1.pbtxt", "example-2.pbtxt"]


def test_a_process_that_dies_where_it_scores_again_fails_the_scores() -> None:
    """The process after one that died scores once more, for the checks that remain."""
    partial = PartialReport("model", ServingContract(signatures=()))
    died = _EarlyEnd("the process was killed by SIGABRT")

    def start(check: str) -> None:
        partial.take({"event": "start", "check": check, "advisory": False})

    start("scores")
    scored = Result("scores", "pass", "3 rows")
    partial.take({"event": "result", "result": dataclasses.asdict(scored)})
    start("schema_rows")
    partial.fail(died)
    start("scores")
    partial.fail(died)
    assert list(partial.done.items()) == [("scores", "fail"), ("schema_rows", "fail")]


def test_an_endless_loop_fails_a_check(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _without_end(tmp_path / "1")
    limit_s = Checker._limit_s

    def limit_of_scores(self: Checker, partial: PartialReport) -> float:
        """Gives all others more time, which they may need on a busy machine."""
        return limit_s(self, partial) if partial.checking == "scores" else 300.0

    monkeypatch.setattr(Checker, "_limit_s", limit_of_scores)
    with Checker(timeout_s=6) as impatient, caplog.at_level(logging.INFO):
        report = impatient.validate(str(folder))
        assert [result.name for result in report.failures] == ["scores"]
        assert "6 s" in report["scores"].message
        assert "Still checking: scores" in caplog.messages  # a user sees what goes on meanwhile


def test_memory_without_end_is_a_failed_check(tmp_path: Path, good_model: Path) -> None:
    def devour(x: tf.Tensor) -> dict[str, tf.Tensor]:
        many = tf.random.uniform([30_000, 30_000]) + x[0, 0]
        return {"y": tf.reduce_sum(many @ many) + x}

    folder = models.save(models.serving(devour, tf.TensorSpec([None, 1])), tmp_path / "1")
    with Checker(memory_limit_mb=2000) as frugal:
        assert frugal.validate(str(folder))["scores"].status == "fail"
        assert frugal.validate(str(good_model)).passed


def _processes_in(folder: Path) -> list[int]:
    """Returns the processes that work in a folder or below it, the oldest first."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink().is_relative_to(folder):
                found.append(int(entry.name))
        except OSError:  # it has ended
            continue
    return sorted(found)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_kept_fork_servers: None) -> Path:
    """The folder of all temporary files, where no fork server of another test is used."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def _server_of(checker: Checker) -> int:
    """Returns the process that those of the checks are forked from."""
    return checker._server._process.pid


def _when_checks_run(scratch: Path, act: Callable[[], None]) -> threading.Thread:
    """Calls `act` when a process stays in the folder."""

    def watch() -> None:
        looks = 0
        while looks < 20:  # some come and go: what stays is in the middle of a check
            time.sleep(0.1)
            looks = looks + 1 if _processes_in(scratch) else 0
        act()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_a_small_model_gets_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights").write_bytes(bytes(machine.MIB))
    monkeypatch.setattr(machine, "free_memory_bytes", lambda: 128 << 30)
    assert _memory_limit_mb(None, tmp_path) == (32 << 10) + 8
    assert _memory_limit_mb(200_000, tmp_path) == 200_000
    monkeypatch.setattr(machine, "free_memory_bytes", lambda: 1 << 30)
    assert _memory_limit_mb(None, tmp_path) == 1024


def test_interrupted_and_killed_checks(good_model: Path, tmp_path: Path, scratch: Path) -> None:
    folder = _without_end(tmp_path / "1")
    handler = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    with Checker(timeout_s=300) as fragile:
        interrupter = _when_checks_run(scratch, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        with pytest.raises(KeyboardInterrupt):
            fragile.validate(str(folder))
        signal.signal(signal.SIGUSR1, handler)
        interrupter.join()
        assert not _processes_in(scratch)

        assert fragile.validate(str(good_model)).passed
        os.killpg(_server_of(fragile), 9)
        assert fragile.validate(str(good_model)).passed
        # Killed amid a check and amid its repetition.
        killers = []

        def kill() -> None:
            os.kill(_server_of(fragile), signal.SIGKILL)
            if len(killers) < 2:
                killers.append(_when_checks_run(scratch, kill))

        killers.append(_when_checks_run(scratch, kill))
        with pytest.raises(WorkerLostError, match="the checking process died"):
            fragile.validate(str(folder))
        for killer in killers:
            killer.join()
        other = _server_of(fragile)
    assert not Path(f"/proc/{other}").exists()
    assert not _processes_in(scratch)
    assert not list(scratch.glob("*/*"))


# A server that is killed is another one that has to import TensorFlow.
@pytest.mark.parametrize(
    ("victim", "once", "twice"),
    [
        ("process", ["begin", "start"], [("begin", "begin"), ("start", "start")]),
        ("server", ["begin"], [("start", "begin")]),
    ],
    ids=["process", "server"],
)
def test_checks_killed_from_outside_are_repeated_and_then_lost(
    victim: str,
    once: list[str],
    twice: list[tuple[str, str]],
    good_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No verdict on the model: the memory of a node may have run out, or its user acted.

    They are killed at events: `begin`, before any check, and `start`, in one.
    """
    kills: list[str] = []  # the events at which to kill, of one process each
    pids: list[int] = []
    start_child, take = Checker._start_child, PartialReport.take

    def started(self: Checker, *arguments: Any) -> int:
        pids[:] = [start_child(self, *arguments)]
        return pids[0]

    def taken(self: PartialReport, event: dict[str, Any]) -> None:
        take(self, event)
        if pids and kills[:1] == [event["event"]]:
            kills.pop(0)
            pid = pids.pop()  # its further events are in the pipe already
            os.kill(pid, signal.SIGSTOP)  # or it would go on until the server is gone
            os.kill(pid if victim == "process" else _server_of(fragile), signal.SIGKILL)

    monkeypatch.setattr(Checker, "_start_child", started)
    monkeypatch.setattr(PartialReport, "take", taken)
    with Checker() as fragile:
        for event in once:
            kills[:] = [event]
            assert fragile.validate(str(good_model)).passed
            assert not kills
        for events in twice:
            kills[:] = events
            with pytest.raises(WorkerLostError, match=r"outside|died") as raised:
                fragile.validate(str(good_model))
            assert exit_code(raised.value) == 143  # try again
            assert not kills
        # The kernel may have freed memory for another process; twice, it is the model's.
        counts = itertools.count()
        monkeypatch.setattr(checker_module, "oom_kills", lambda: next(counts))
        if victim == "process":
            kills[:] = ["start", "start"]
            assert "memory ran out" in fragile.validate(str(good_model)).failures[0].message
    partial = PartialReport(str(good_model), ServingContract())
    with pytest.raises(WorkerMemoryError, match="memory ran out"):  # while the model is opened
        partial.fail(_EarlyEnd("memory ran out", WorkerMemoryError))


def test_tfma_is_imported_only_for_an_eval_config() -> None:
    code = (
        "import sys\n"
        "from generic_trainer._core.texts import load_eval_config, load_schema\n"
        "assert load_eval_config(None) is None and load_schema(None) is None\n"
        "assert not {'tensorflow', 'tensorflow_model_analysis'} & set(sys.modules)\n"
    )
    run_python("-c", code)
