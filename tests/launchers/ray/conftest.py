"""Jobs on two nodes, which all tests of this folder share."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from generic_trainer.launchers import Distribution, Job, launch
from tests.launchers import jobs

Run = Callable[..., Job]


@pytest.fixture
def run(ray_nodes: Any, examples: Path, tmp_path: Path) -> Run:
    """Runs a module's source on the two nodes."""

    def run(source: str, **distribution: Any) -> Job:
        wanted = Distribution(launcher="ray", **{"max_failures": 0, **distribution})
        job = jobs.make_job(tmp_path, examples, source, distribution=wanted, seed=1)
        launch(job)
        return job

    return run


@pytest.fixture
def told() -> Callable[[Job, str], dict[str, str]]:
    """Returns worker → the rest of its line that starts so."""

    def told(job: Job, start: str) -> dict[str, str]:
        found = re.findall(rf"^\((.+?) pid=\d+.*?\) {start} (.*)$", jobs.log(job), re.MULTILINE)
        return dict(found)

    return told
