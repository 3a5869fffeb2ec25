"""Sessions in a second process, for a check that is still to come."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from generic_trainer._core.machine import available_cpus
from generic_trainer.validation import Checker, ServingContract, start_checker
from generic_trainer.validation import _ahead_runner as ahead_runner
from generic_trainer.validation._ahead import Ahead, decode_outputs, encode_outputs, send
from generic_trainer.validation._scoring import Feed, Scores
from tests.validation import models

two_processors = pytest.mark.skipif(len(available_cpus()) < 2, reason="needs two processors")
FEED = Feed({"x": np.zeros([3, 1])}, "rows", real=False, serialized=False)


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    numbers = np.random.rand(200_000)
    module = models.serving(
        lambda x: {"y": x + tf.reduce_sum(tf.constant(numbers, tf.float32))},
        tf.TensorSpec([None, 1], tf.float32, "x"),
    )
    return models.save(module, tmp_path_factory.mktemp("large") / "1")


@two_processors
def test_tells_what_the_check_would_find(checker: Checker, large_model: Path) -> None:
    report = checker.validate(str(large_model))
    assert report.facts["found_ahead"] == ["session"]
    assert report.passed, report.summary()
    with start_checker(memory_limit_mb=8000) as alone:  # which two processes might exceed
        other = alone.validate(str(large_model))
    assert "found_ahead" not in other.facts
    same = [(each.name, each.status) for each in other.results]
    assert [(each.name, each.status) for each in report.results] == same


@two_processors
def test_time_is_measured_without_it(checker: Checker, large_model: Path) -> None:
    report = checker.validate(str(large_model), ServingContract(max_latency_ms=10_000))
    assert report.passed, report.summary()
    assert "found_ahead" not in report.facts


def test_a_small_graph_is_not_worth_it(checker: Checker, good_model: Path) -> None:
    assert "found_ahead" not in checker.validate(str(good_model)).facts


@two_processors
def test_what_fails_there_is_met_by_the_check_itself(checker: Checker, tmp_path: Path) -> None:
    numbers = np.random.rand(200_000)
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, name="dense")])
    serve = tf.function(
        lambda x: {"y": model(x) + tf.reduce_sum(tf.constant(numbers, tf.float32))},
        input_signature=[models.ROWS],
    )
    tf.saved_model.save(model, str(tmp_path / "1"), signatures={"serving_default": serve})
    report = checker.validate(str(tmp_path / "1"))
    assert report["session"].status == "fail"
    assert "dense/bias" in report["session"].message
    assert "found_ahead" not in report.facts


@two_processors
@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_a_process_that_dies_is_not_missed(
    seconds: float, large_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Checker._start_ahead

    def start_and_kill(self: Checker, *arguments: Any) -> int:
        pid = start(self, *arguments)
        time.sleep(seconds)
        self._server.kill(pid)  # it may have ended by then
        return pid

    monkeypatch.setattr(Checker, "_start_ahead", start_and_kill)
    with start_checker() as fragile:
        for _ in range(2):
            report = fragile.validate(str(large_model))
            assert report.passed, report.summary()
            assert report["session"].status == "pass"


@pytest.mark.parametrize("done", [{"file_ops": "fail"}, {"devices": "fail"}])
def test_a_model_that_must_not_be_run_is_not(done: dict[str, str], tmp_path: Path) -> None:
    told, tells = os.pipe()
    request = {"done": {"serve_tag": "pass", **done}, "model_dir": str(tmp_path)}
    assert ahead_runner.run(request, tells) == 0
    os.close(tells)
    assert Ahead(told).found() is None


def test_hands_over_what_was_found() -> None:
    told, tells = os.pipe()
    found = {"outputs": "o" * 1_000_000, "more": [1.5, None]}
    teller = threading.Thread(target=send, args=[tells], kwargs={"found": found, "cpu_seconds": 2})
    teller.start()  # it waits until somebody reads
    ahead = Ahead(told)
    assert ahead.found() == found
    assert ahead.cpu_seconds == 2
    assert ahead.found() is None
    teller.join()
    os.close(tells)


def test_half_of_a_line_is_nothing() -> None:
    told, tells = os.pipe()
    os.write(tells, b'{"found": {}, "cpu_seconds": 1}')
    os.close(tells)
    ahead = Ahead(told)
    assert ahead.found() is None
    assert ahead.cpu_seconds == 0
    assert Ahead().found() is None


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
