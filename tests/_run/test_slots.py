"""How many workers a job has whose configuration asks for slots."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from generic_trainer._run import slots
from generic_trainer.launchers import Distribution, TFJobOptions
from tests.launchers import jobs

TFJOB = TFJobOptions(image="image")


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Returns how many workers a job with a configuration gets on a machine."""
    local = Distribution(launcher="local")
    job = jobs.make_job(tmp_path, tmp_path, "def run_fn(fn_args): pass", distribution=local)

    def count(config: Any, gpus: int = 0, processors: int = 4, **wanted: Any) -> int:
        monkeypatch.setattr(slots, "visible_gpus", lambda: ["gpu"] * gpus)
        monkeypatch.setattr(slots, "available_cpus", lambda: [*range(processors)])
        request = dataclasses.replace(job.request, custom_config=config)
        changed = dataclasses.replace(job, request=request, distribution=Distribution(**wanted))
        return slots.with_a_worker_for_each_slot(changed).distribution.num_workers

    return count


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
    workers: Any, wanted: Any, gpus: int, processors: int, expected: int
) -> None:
    config = {"resources": {"slots_per_trial": 3}}
    assert workers(config, gpus, processors, **wanted) == expected


@pytest.mark.parametrize(
    "config",
    [None, {}, {"resources": 3}, {"resources": {}}, {"resources": {"slots_per_trial": "three"}}],
)
def test_without_slots_there_is_one_worker(workers: Any, config: Any) -> None:
    assert workers(config, launcher="local") == 1


@pytest.mark.parametrize(
    ("text", "expected"), [("{resources: {slots_per_trial: 2}}", 2), ("{resources: [", 1)]
)
def test_the_configuration_may_be_a_file(
    workers: Any, tmp_path: Path, text: str, expected: int
) -> None:
    (tmp_path / "const.yaml").write_text(text)
    config = {"experiment_config": str(tmp_path / "const.yaml")}
    assert workers(config, launcher="local") == expected
