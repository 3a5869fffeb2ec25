"""Clusters of real processes: each worker sees its share, once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import run_fn
from tests.house import ROOT
from tests.launchers.jobs import runner, told

pytestmark = pytest.mark.campaign("data", "launchers")  # `test_sharding` cuts as TensorFlow does
EVERYTHING = list(range(300))
Ids = dict[str, list[int]]


@pytest.fixture
def read(taxis: str, tmp_path: Path) -> Callable[..., list[Ids]]:
    """Returns what a function of `in_cluster` gives each task that calls `run_fn`."""

    def read(function: str, **cluster: int) -> list[Ids]:
        body = f"""
        import json
        from tests.data import in_cluster
        print("read:", json.dumps(in_cluster.{function}(fn_args.custom_config)))
        """
        env: Any = {"PYTHONPATH": str(ROOT), "TF_USE_LEGACY_KERAS": "1"}
        run = runner(tmp_path, tmp_path, "local", custom_config=taxis)
        job = run(run_fn(body), num_workers=2, env=env, **cluster)
        return [json.loads(text) for _, text in sorted(told(job, "read:").items())]

    return read


def test_two_workers_of_a_multi_worker_strategy(read: Callable[..., list[Ids]]) -> None:
    of_first, of_second = read("of_worker")
    assert sorted(of_first) == ["by hand", "disk", "memory", "stream"]
    for way, ids in of_first.items():
        assert sorted(ids + of_second[way]) == EVERYTHING, way
    for way in ("memory", "disk", "by hand"):
        assert 140 <= len(of_first[way]) <= 160, way
    # Files of 150, 50 and 100 examples are dealt out whole.
    assert {len(of_first["stream"]), len(of_second["stream"])} == {250, 50}


def test_two_workers_and_a_parameter_server(read: Callable[..., list[Ids]]) -> None:
    [of_both] = read("of_coordinator", parameter_servers=1)
    # The strategy does not shard: each worker goes through everything once.
    assert sorted(of_both) == ["built on each worker", "sent to each worker"]
    for way, ids in of_both.items():
        assert sorted(ids) == sorted(2 * EVERYTHING), way
