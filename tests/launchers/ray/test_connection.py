"""Clusters that are not there, and room that is not there."""

import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import pytest

from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers import Distribution, RayOptions, launch
from generic_trainer.launchers._ray import connection
from generic_trainer.launchers._ray.connection import check_reachable, no_room, room_for
from tests.launchers import jobs
from tests.processes import free_ports


class FailingRay:
    """Fails in `ray.init`, as a server that does not come up in time."""

    def init(self, **arguments: Any) -> None:
        raise RuntimeError("out of order")

    def shutdown(self) -> None:
        """Knows of no server."""


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Undoes what a connection leaves in the environment of its process."""
    with mock.patch.dict(os.environ):
        yield


def state() -> list[Any]:
    """Returns what `ray.init` changes in a process."""
    gc.collect()  # or files that another test has left open are closed in between
    handler = signal.getsignal(signal.SIGTERM)
    return [handler, sorted(os.listdir("/proc/self/fd")), threading.active_count()]


@pytest.fixture
def closed_port() -> int:
    return free_ports(1)[0]


@pytest.mark.parametrize("prefix", ["", "ray://"])
def test_address_where_nothing_listens_is_an_error_in_time(prefix: str, closed_port: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"No Ray cluster answers at {prefix}127"):
        check_reachable(f"{prefix}127.0.0.1:{closed_port}", 0.2)


def test_cluster_that_comes_up_late_is_waited_for(closed_port: int) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))

    def start() -> None:
        server.add_insecure_port(f"127.0.0.1:{closed_port}")
        server.start()

    late = threading.Timer(0.5, start)
    late.start()
    try:
        check_reachable(f"127.0.0.1:{closed_port}", 60.0)
    finally:
        late.join()
        server.stop(None)


def test_what_listens_and_is_no_ray_is_told_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:  # the kernel accepts, nothing answers
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match="No Ray cluster answers"):
            check_reachable(address, 0.2)


@pytest.mark.parametrize(
    ("timeout_s", "answers_s", "places_s"), [(None, 20.0, 300.0), (7.0, 7.0, 7.0)]
)
def test_a_cluster_must_answer_sooner_than_it_must_have_room(
    timeout_s: float | None, answers_s: float, places_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[float] = []
    monkeypatch.setattr(connection, "check_reachable", lambda _, seconds: tried.append(seconds))
    monkeypatch.setitem(sys.modules, "ray", FailingRay())
    options = RayOptions(address="head:6379", connect_timeout_s=timeout_s)
    wanted = Distribution(launcher="ray", ray=options)
    with pytest.raises(ConfigurationError, match="out of"), connection.connected(wanted):
        pass
    assert tried == [answers_s]
    assert connection.placement_timeout_s(wanted) == places_s


@pytest.mark.parametrize(
    ("ray", "message"),
    [
        (FailingRay(), "Ray cannot be used on this machine: out of order"),
        (None, r"pip install 'ray\[client\]'"),
    ],
)
def test_ray_that_cannot_be_used_is_explained(
    ray: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", ray)
    wanted = Distribution(launcher="ray")
    with pytest.raises(ConfigurationError, match=message), connection.connected(wanted):
        pass


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
    before = state()
    with pytest.raises(ConfigurationError, match=f"ray://127.0.0.1:{closed_port} within"):
        launch(job)
    assert state() == before


@pytest.mark.slow
def test_run_on_a_ray_of_its_own_leaves_this_process_as_it_was(
    examples: Path, tmp_path: Path
) -> None:
    source = "def run_fn(fn_args): export(fn_args.serving_model_dir)"
    wanted = Distribution(launcher="ray")
    job = jobs.make_job(tmp_path, examples, source, distribution=wanted)
    before = state()
    launch(job)
    assert jobs.exported(job) == ["Format-Serving"]
    handler, files, threads = state()
    assert handler == before[0]
    assert {*files} <= {*before[1]} and threads <= before[2]  # those of other tests may end
    assert "(worker 0 pid=" in jobs.log(job)


def test_room_that_is_missing_is_named_with_what_there_is() -> None:
    wanted = Distribution(
        launcher="ray", num_workers=3, gpus_per_worker=1, memory_mb_per_worker=2048
    )
    total = {"CPU": 8.0, "memory": 4.0 * 2**30}
    assert room_for(wanted, total) == 0
    assert room_for(wanted, {**total, "GPU": 3.0}) == 2
    required = Distribution(launcher="ray", require_gpu=True)
    rooms = [room_for(required, {"CPU": 1.0, "GPU": gpus}) for gpus in (0.0, 1.0)]
    assert rooms == [0, 1]
    assert (
        "Expected room for 3 x (1 CPU, 1 GPU, 2048 MiB of memory), found a cluster with 8 CPU, "
        "0 GPU, 4096 MiB of memory"
    ) in no_room(wanted, total, 5.0)
