"""Clusters that are not there, and room that is not there."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers import Distribution, RayOptions, launch
from generic_trainer.launchers._ray.connection import (
    check_reachable,
    missing_resources,
    no_room,
)
from tests.launchers import jobs


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.parametrize("prefix", ["", "ray://"])
def test_address_where_nothing_listens_is_an_error_in_time(prefix: str, closed_port: int) -> None:
    clock = Clock()
    with pytest.raises(ConfigurationError, match=r"No Ray cluster answers.*refused"):
        check_reachable(f"{prefix}127.0.0.1:{closed_port}", 20.0, clock=clock, sleep=clock.sleep)
    assert clock.now_s <= 20.0


def test_cluster_that_comes_up_late_is_waited_for(closed_port: int) -> None:
    clock = Clock()
    with socket.socket() as late:

        def sleep(seconds: float) -> None:
            clock.sleep(seconds)
            if clock.now_s == 3.0:
                late.bind(("127.0.0.1", closed_port))
                late.listen()

        check_reachable(f"127.0.0.1:{closed_port}", 20.0, clock=clock, sleep=sleep)
    assert clock.now_s == 3.0


@pytest.mark.parametrize("address", ["head", "http://head:8265", "ray://head", ""])
def test_what_is_no_address_is_said_to_be_none(address: str) -> None:
    with pytest.raises(ConfigurationError, match="must be 'auto', 'ray://host:10001'"):
        check_reachable(address, 1.0)


def test_run_on_a_cluster_that_is_not_there_names_its_address(
    examples: Path, tmp_path: Path, closed_port: int
) -> None:
    options = RayOptions(address=f"ray://127.0.0.1:{closed_port}", connect_timeout_s=0.1)
    wanted = Distribution(launcher="ray", ray=options)
    job = jobs.make_job(tmp_path, examples, "def run_fn(fn_args): pass", distribution=wanted)
    with pytest.raises(ConfigurationError, match=f"ray://127.0.0.1:{closed_port} within"):
        launch(job)


def test_missing_ray_names_what_to_install(
    examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray.train", None)
    wanted = Distribution(launcher="ray")
    job = jobs.make_job(tmp_path, examples, "def run_fn(fn_args): pass", distribution=wanted)
    with pytest.raises(ConfigurationError, match=r"pip install generic-trainer\[ray\]"):
        launch(job)


def test_room_that_is_missing_is_named_with_what_there_is() -> None:
    wanted = Distribution(
        launcher="ray", num_workers=3, gpus_per_worker=1, memory_mb_per_worker=2048
    )
    total = {"CPU": 8.0, "memory": 4.0 * 2**30}
    assert missing_resources(wanted, total) == ["GPU", "memory"]
    assert (
        "Expected room for 3 x (1 CPU, 1 GPU, 2048 MiB of memory), found a cluster with 8 CPUs, "
        "0 GPUs, 4096 MiB of memory"
    ) in no_room(wanted, total, 5.0)


def test_gpu_that_is_required_is_reserved() -> None:
    wanted = Distribution(launcher="ray", require_gpu=True)
    assert missing_resources(wanted, {"CPU": 1.0}) == ["GPU"]
