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
        ({"launcher": "local", "gpus_per_worker": 1}, 8, 4, 3),
        ({"launcher": "local", "num_workers": 2}, 0, 4, 2),
        ({"launcher": "local", "parameter_servers": 1}, 0, 4, 1),
        ({"launcher": "tfjob", "tfjob": TFJOB}, 8, 2, 3),
        ({"launcher": "tfjob", "tfjob": TFJOB, "gpus_per_worker": 4}, 0, 2, 1),
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


RAY = {"launcher": "ray"}


@pytest.mark.parametrize(
    ("wanted", "searcher", "slots_per_trial", "gpus", "expected"),
    [
        ({}, {"max_concurrent_trials": 4}, 1, 0, 1),  # in process
        ({"launcher": "local"}, {}, 1, 0, 1),
        ({"launcher": "local"}, {"max_concurrent_trials": 4}, 1, 0, 4),
        ({"launcher": "local"}, {"max_concurrent_trials": 16}, 1, 0, 8),  # one each processor
        ({"launcher": "local"}, {"max_concurrent_trials": 16}, 1, 1, 1),  # one each GPU
        ({"launcher": "local"}, {"max_concurrent_trials": 16}, 1, 4, 4),
        ({"launcher": "local"}, {"max_concurrent_trials": 2}, 3, 0, 6),
        ({"launcher": "local"}, {"max_concurrent_trials": 0, "max_trials": 3}, 1, 0, 3),
        (
            {"launcher": "local", "memory_mb_per_worker": 5000},
            {"max_concurrent_trials": 4},
            1,
            0,
            2,
        ),
        ({"launcher": "local", "cpus_per_worker": 4}, {"max_concurrent_trials": 4}, 1, 0, 2),
        ({"launcher": "local", "num_workers": 3}, {"max_concurrent_trials": 4}, 1, 0, 3),
        ({"launcher": "local"}, {"max_concurrent_trials": "four"}, 1, 0, 1),  # is refused later
        (RAY, {"max_concurrent_trials": 4}, 2, 0, (2, 8)),
        ({"launcher": "tfjob", "tfjob": TFJOB}, {"max_concurrent_trials": 4}, 1, 0, 1),
    ],
)
def test_workers_for_trials_side_by_side(
    job: Any,
    monkeypatch: Any,
    wanted: Any,
    searcher: Any,
    slots_per_trial: int,
    gpus: int,
    expected: Any,
) -> None:
    monkeypatch.setattr(slots, "visible_gpus", lambda: ["gpu"] * gpus)
    monkeypatch.setattr(slots, "available_cpus", lambda: [*range(8)])
    monkeypatch.setattr(
        slots,
        "free_memory_bytes",
        lambda: (10_500 if "memory_mb_per_worker" in wanted else 32_000) << 20,
    )
    config = {"searcher": searcher, "resources": {"slots_per_trial": slots_per_trial}}
    request = dataclasses.replace(job.request, custom_config=config)
    job = dataclasses.replace(job, request=request, distribution=Distribution(**wanted))
    assert slots.with_a_worker_for_each_slot(job).distribution.num_workers == expected


@pytest.mark.parametrize("config", [None, {}, {"resources": 3}, {"resources": {}}])
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
