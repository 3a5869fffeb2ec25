"""Jobs in the pods of a stand-in for a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from generic_trainer.launchers import Distribution, Job, TFJobOptions, TrainJobOptions, launch
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


def _runs(launcher: str, kind: type, examples: Path, tmp_path: Path) -> Run:
    def run(source: str, *, options: dict[str, Any] | None = None, **distribution: Any) -> Job:
        fields = {"image": "example/trainer:1", "volumes": {"claim": str(tmp_path)}}
        wanted = Distribution(
            launcher=launcher,  # type: ignore[arg-type]
            **{launcher: kind(**{**fields, **(options or {})})},
            **{"max_failures": 0, **distribution},
        )
        job = jobs.make_job(tmp_path, examples, source, distribution=wanted, seed=1)
        launch(job)
        return job

    return run


@pytest.fixture
def run(cluster: StandIn, examples: Path, tmp_path: Path) -> Run:
    """Runs a module's source in the pods of a TFJob that mount the test's folder."""
    return _runs("tfjob", TFJobOptions, examples, tmp_path)


@pytest.fixture
def train(cluster: StandIn, examples: Path, tmp_path: Path) -> Run:
    """Runs a module's source in the pods of a TrainJob that mount the test's folder."""
    return _runs("trainjob", TrainJobOptions, examples, tmp_path)
