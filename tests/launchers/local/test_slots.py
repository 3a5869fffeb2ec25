"""Trials and estimators on several workers: each is a slot, and they end as one does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from generic_trainer.launchers import Distribution, Job, launch
from tests.launchers import jobs
from tests.trials import slots

Run = Callable[..., Job]

TRIALS = {
    "Keras": slots.KERAS,
    "arrays": slots.ARRAYS,
    "TensorFlow": slots.GRAPH,
    "estimator": slots.ESTIMATOR_TRIAL,
}


@pytest.fixture
def run(examples: Path, tmp_path: Path) -> Run:
    """Runs a module's source in so many child processes."""

    def run(source: str, num_workers: int, config: Any = slots.CONFIG, **options: Any) -> Job:
        wanted = Distribution(
            launcher="local", num_workers=num_workers, **{"max_failures": 0, **options}
        )
        job = jobs.make_job(
            tmp_path / str(num_workers),
            examples,
            source,
            distribution=wanted,
            custom_config=config,
        )
        launch(job)
        return job

    return run


def told(job: Job, start: str) -> list[str]:
    """Returns the rest of each worker's lines that start so."""
    found = re.findall(rf"^(?:\[.+?\] )?{start} (.*)$", jobs.log(job), re.MULTILINE)
    return sorted(found)


def history(job: Job) -> list[dict[str, Any]]:
    [trial] = json.loads(Path(job.request.model_run_dir, "trials.json").read_text())
    return trial["history"]


def assert_alike(actual: Job, expected: Job) -> None:
    pairs = list(zip(history(actual), history(expected), strict=True))
    assert len(pairs) == 4
    for one, other in pairs:
        assert one.keys() == other.keys()
        for kind in one.keys() - {"batches"}:
            assert one[kind].keys() == other[kind].keys()
            for name, value in other[kind].items():
                np.testing.assert_allclose(one[kind][name], value, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind == "arrays")) for kind in TRIALS]
)
def test_two_slots_train_as_one(run: Run, kind: str) -> None:
    job = run(TRIALS[kind], 2)
    if kind != "TensorFlow":  # which has no context
        assert {*told(job, "place:")} == {"0 2 0 1", "1 2 1 1"}
        assert {*told(job, "checkpoint:")} == {"True"}
    if kind == "estimator":
        assert {*told(job, "slots:")} == {"2"}
    assert jobs.exported(job) == ["Format-Serving"]
    alone = run(TRIALS[kind], 1)
    assert_alike(job, alone)
    assert told(job, "checkpoint:") == told(alone, "checkpoint:")  # of one of the two workers


@pytest.mark.slow
def test_estimators_train_as_one(run: Run) -> None:
    job, alone = run(slots.TRAINER_FN, 2), run(slots.TRAINER_FN, 1)
    weights = [json.loads(each) for each in told(job, "w:")]
    [expected] = [json.loads(each) for each in told(alone, "w:")]
    assert weights[0] == weights[1]
    np.testing.assert_allclose(weights[0], expected, rtol=1e-5)
    assert jobs.exported(job) == ["Format-Serving"]
