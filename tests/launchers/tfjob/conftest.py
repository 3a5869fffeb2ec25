"""Jobs in the pods of a stand-in for a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from generic_trainer.launchers import Distribution, Job, TFJobOptions, launch
from tests.launchers import jobs
from tests.launchers.kubernetes_stand_in import StandIn, kubernetes_stand_in

Run = Callable[..., Job]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandIn]:
    """The cluster, with nothing in it."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    with kubernetes_stand_in(folder) as stand_in:
        yield stand_in


@pytest.fixture
def run(cluster: StandIn, examples: Path, tmp_path: Path) -> Run:
    """Runs a module's source in pods that mount the test's folder."""

    def run(source: str, *, tfjob: dict[str, Any] | None = None, **distribution: Any) -> Job:
        options = {"image": "example/trainer:1", "volumes": {"claim": str(tmp_path)}}
        wanted = Distribution(
            launcher="tfjob",
            tfjob=TFJobOptions(**{**options, **(tfjob or {})}),
            **{"max_failures": 0, **distribution},
        )
        job = jobs.make_job(tmp_path, examples, source, distribution=wanted, seed=1)
        launch(job)
        return job

    return run
