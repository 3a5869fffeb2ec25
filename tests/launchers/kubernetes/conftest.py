"""Jobs in the pods of a stand-in for a Kubernetes cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launchers.jobs import Run, runner
from tests.launchers.kubernetes_stand_in import StandIn, kubernetes_stand_in


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandIn]:
    """The cluster, with nothing in it."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    with kubernetes_stand_in(folder) as stand_in:
        yield stand_in


@pytest.fixture
def run(cluster: StandIn, examples: Path, tmp_path: Path) -> Run:
    """Runs a module's source in the pods of a TFJob that mount the test's folder."""
    return runner(tmp_path, examples, "tfjob", image="a/b:1", volumes={"claim": str(tmp_path)})


@pytest.fixture
def train(cluster: StandIn, examples: Path, tmp_path: Path) -> Run:
    """Runs a module's source in the pods of a TrainJob that mount the test's folder."""
    return runner(tmp_path, examples, "trainjob", image="a/b:1", volumes={"claim": str(tmp_path)})
