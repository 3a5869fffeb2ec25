"""What a second process finds out ahead, for checks that are still to come."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from generic_trainer._core.machine import available_cpus
from generic_trainer.validation import Checker, start_checker
from generic_trainer.validation import _ahead_runner as ahead_runner
from generic_trainer.validation._ahead import Ahead, decode_outputs, encode_outputs, tell
from generic_trainer.validation._scoring import Feed, Scores
from tests.validation import models
from tests.validation.broken_evaluations import GOOD_CONFIG, contract

two_processors = pytest.mark.skipif(len(available_cpus()) < 2, reason="needs two processors")
FEED = Feed({"x": np.zeros([3, 1])}, "rows", real=False, serialized=False)


@two_processors
def test_tells_what_the_checks_would_find(checker: Checker, good_model: Path) -> None:
    wanted = contract(GOOD_CONFIG)
    report = checker.validate(str(good_model), wanted)
    assert report.facts["found_ahead"] == ["session", "eval_rehearsal"]
    with start_checker(memory_limit_mb=8000) as alone:  # which two processes might exceed
        other = alone.validate(str(good_model), wanted)
    assert "found_ahead" not in other.facts
    same = [(each.name, each.status) for each in other.results]
    assert [(each.name, each.status) for each in report.results] == same
    assert report.facts["rehearsed_metrics"] == other.facts["rehearsed_metrics"]


@two_processors
def test_time_is_measured_without_it(checker: Checker, good_model: Path) -> None:
    timed = dataclasses.replace(contract(GOOD_CONFIG), max_latency_ms=10_000)
    report = checker.validate(str(good_model), timed)
    assert report.passed
    assert "found_ahead" not in report.facts


@two_processors
def test_a_large_graph_is_loaded_twice_at_once_and_a_small_one_is_not(
    checker: Checker, good_model: Path, tmp_path: Path
) -> None:
    assert "found_ahead" not in checker.validate(str(good_model)).facts

    numbers = np.random.rand(200_000)
    module = models.serving(
        lambda x: {"y": x + tf.reduce_sum(tf.constant(numbers, tf.float32))},
        tf.TensorSpec([None, 1], tf.float32, "x"),
    )
    report = checker.validate(str(models.save(module, tmp_path / "1")))
    assert report.passed, report.summary()
    assert report.facts["found_ahead"] == ["session"]


@two_processors
def test_what_fails_there_is_met_by_the_check_itself(checker: Checker, good_model: Path) -> None:
    wanted = contract(GOOD_CONFIG.replace("MeanSquaredError", "NoSuchMetric"))
    report = checker.validate(str(good_model), wanted)
    assert report["eval_rehearsal"].status == "fail"
    assert "NoSuchMetric" in report["eval_rehearsal"].message
    assert report.facts["found_ahead"] == ["session"]


@two_processors
@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_a_process_that_dies_is_not_missed(
    seconds: float, good_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Checker._start_ahead

    def start_and_kill(self: Checker, *arguments: Any) -> int:
        pid = start(self, *arguments)
        time.sleep(seconds)
        self._server.kill(pid)  # it may have ended by then
        return pid

    monkeypatch.setattr(Checker, "_start_ahead", start_and_kill)
    with start_checker(preload=("tensorflow_model_analysis",)) as fragile:
        for _ in range(2):
            report = fragile.validate(str(good_model), contract(GOOD_CONFIG))
            assert report.passed, report.summary()
            assert report["eval_rehearsal"].status == "pass"


def test_a_model_that_must_not_be_run_is_not(tmp_path: Path) -> None:
    told, tells = os.pipe()
    request = {"done": {"serve_tag": "pass", "file_ops": "fail"}, "model_dir": str(tmp_path)}
    assert ahead_runner.run(request, tells) == 0
    os.close(tells)
    assert Ahead(told).found_for("session") is None


def test_hands_over_check_by_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told, tells = os.pipe()
    tell(tells, "first", lambda: {"found": [1.5, float("nan")]})
    tell(tells, "second", lambda: {}["missing"])
    tell(tells, "third", lambda: object())
    tell(tells, "fourth", dict)
    os.close(tells)
    ahead = Ahead(told)
    found = ahead.found_for("first")
    assert found["found"][0] == 1.5
    assert np.isnan(found["found"][1])
    assert ahead.found_for("second") is None
    assert ahead.found_for("fourth") == {}
    assert ahead.found_for("fifth") is None


def test_outputs_arrive_as_they_were() -> None:
    outputs = {
        "strings": np.array([[b"a"], [b"\xff\0"], [b""]], dtype=object),
        "halves": tf.constant([0.1, 2.0, 3.0], tf.bfloat16).numpy(),
        "one": np.asarray(b"text"),
        "numbers": np.array([[1, 2], [3, 4], [5, 1 << 40]]),
        "none": np.zeros([3, 0], np.float32),
        "truth": np.array([True, False, True]),
    }
    encoded = json.loads(json.dumps({"serve": encode_outputs(FEED, outputs)}))
    decoded = decode_outputs(encoded, {"serve": _scores(FEED)})
    assert decoded is not None
    for key, value in outputs.items():
        assert decoded["serve"][key].shape == value.shape
        assert (decoded["serve"][key] == value).all()
        assert decoded["serve"][key].dtype == value.dtype or value.dtype.kind == "S"


@pytest.mark.parametrize(
    "feed", [FEED.part([0, 2]), dataclasses.replace(FEED, inputs={"x": np.zeros([4, 1])})]
)
def test_outputs_for_other_rows_are_not_taken(feed: Feed) -> None:
    encoded = {"serve": encode_outputs(FEED, {"y": np.zeros(3)})}
    assert decode_outputs(encoded, {"serve": _scores(feed)}) is None
    assert decode_outputs(encoded, {"other": _scores(FEED)}) is None
    assert decode_outputs(encoded, {}) == {}


def _scores(feed: Feed) -> Scores:
    return Scores(feed, {}, {}, {}, ())
