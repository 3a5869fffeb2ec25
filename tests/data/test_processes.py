"""Clusters of real processes: each worker sees its share, once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300
EVERYTHING = list(range(300))


def cluster(**jobs: int) -> dict[str, list[str]]:
    """Returns addresses on this machine that were free a moment ago."""
    with ExitStack() as stack:
        sockets = {
            job: [stack.enter_context(socket.socket()) for _ in range(number)]
            for job, number in jobs.items()
        }
        for each in (each for of_job in sockets.values() for each in of_job):
            each.bind(("localhost", 0))
        return {
            job: [f"localhost:{each.getsockname()[1]}" for each in of_job]
            for job, of_job in sockets.items()
        }


@contextmanager
def process(
    hosts: dict[str, list[str]], job: str, index: int, pattern: str
) -> Iterator[subprocess.Popen[str]]:
    config = {"cluster": hosts, "task": {"type": job, "index": index}}
    environment = {
        **os.environ,
        "TF_CONFIG": json.dumps(config),
        "TF_USE_LEGACY_KERAS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-m", "tests.data.cluster_process", pattern]
    child = subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def ids_from(child: subprocess.Popen[str]) -> dict[str, list[int]]:
    output, _ = child.communicate(timeout=TIMEOUT_S)
    assert child.returncode == 0
    read: dict[str, list[int]] = json.loads(output.splitlines()[-1])
    return read


@pytest.mark.slow
def test_two_workers_of_a_multi_worker_strategy(taxis: str) -> None:
    hosts = cluster(worker=2)
    with process(hosts, "worker", 0, taxis) as first, process(hosts, "worker", 1, taxis) as second:
        of_first, of_second = ids_from(first), ids_from(second)
    assert sorted(of_first) == ["by hand", "disk", "memory", "stream"]
    for way, read in of_first.items():
        assert sorted(read + of_second[way]) == EVERYTHING, way
    for way in ("memory", "disk", "by hand"):
        assert 140 <= len(of_first[way]) <= 160, way
    # Files of 150, 50 and 100 examples are dealt out whole.
    assert {len(of_first["stream"]), len(of_second["stream"])} == {250, 50}


@pytest.mark.slow
def test_two_workers_and_a_parameter_server(taxis: str) -> None:
    hosts = cluster(chief=1, worker=2, ps=1)
    others = [("worker", 0), ("worker", 1), ("ps", 0)]
    with ExitStack() as stack:
        for job, index in others:
            stack.enter_context(process(hosts, job, index, taxis))
        read = ids_from(stack.enter_context(process(hosts, "chief", 0, taxis)))
    # The strategy does not shard: each worker goes through everything once.
    assert sorted(read) == ["built on each worker", "sent to each worker"]
    for way, of_both in read.items():
        assert sorted(of_both) == sorted(2 * EVERYTHING), way
