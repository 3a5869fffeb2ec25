"""How many workers a job has whose configuration asks for slots."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from generic_trainer._run import slots
from generic_trainer.launchers import Distribution, TFJobOptions
from tests.launchers import jobs

SOURCE = "def run_fn(fn_args): pass"
TFJOB = TFJobOptions(image="image")


@pytest.fixture
def job(tmp_path: Path) -> Any:
    return jobs.make_job(tmp_path, tmp_path, SOURCE, distribution=Distribution(launcher="local"))


@pytest.mark.parametrize(
    ("wanted", "gpus", "processors", "expected"),
    [
        ({"launcher": "local"}, 0, 4, 3),
        ({"launcher": "local"}, 3, 4, 1),  # the slots of one worker
        ({"launcher": "local"}, 0, 2, 1),  # which trains on whole batches
        ({"launcher": "local", "num_workers": 2}, 0, 4, 2),
        ({"launcher": "local", "parameter_servers": 1}, 0, 4, 1),
        ({"launcher": "tfjob", "tfjob": TFJOB}, 8, 2, 3),
        ({}, 0, 4, 1),
    ],
)
def test_a_worker_for_each_slot(
    job: Any, monkeypatch: Any, wanted: Any, gpus: int, processors: int, expected: int
) -> None:
    monkeypatch.setattr(slots, "visible_gpus", lambda: ["gpu"] * gpus)
    monkeypatch.setattr(slots, "available_cpus", lambda: [*range(processors)])
    config = {"resources": {"slots_per_trial": 3}}
    request = dataclasses.replace(job.request, custom_config=config)
    job = dataclasses.replace(job, request=request, distribution=Distribution(**wanted))
    assert slots.with_a_worker_for_each_slot(job).distribution.num_workers == expected


@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {"resources": 3},
        {"resources": {}},
        {"resources": {"slots_per_trial": "three"}},
        {"searcher": {"max_concurrent_trials": 4}},
    ],
)
def test_without_slots_the_job_stays_as_it_is(job: Any, config: Any) -> None:
    request = dataclasses.replace(job.request, custom_config=config)
    job = dataclasses.replace(job, request=request)
    assert slots.with_a_worker_for_each_slot(job) is job


@pytest.mark.parametrize("text", ["{resources: {slots_per_trial: 2}}", "{resources: ["])
def test_the_configuration_may_be_a_file(job: Any, monkeypatch: Any, text: str) -> None:
    monkeypatch.setattr(slots, "visible_gpus", lambda: [])
    monkeypatch.setattr(slots, "available_cpus", lambda: [0, 1])
    path = Path(job.request.scratch_dir, "const.yaml")
    path.write_text(text)
    request = dataclasses.replace(job.request, custom_config={"experiment_config": str(path)})
    job = dataclasses.replace(job, request=request)
    found = slots.with_a_worker_for_each_slot(job).distribution.num_workers
    assert found == (2 if "2" in text else 1)
