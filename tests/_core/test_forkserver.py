"""Children of a fork server: what they are given, how their ends are told, and that none stays."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from generic_trainer._core.forkserver import ForkServer
from generic_trainer.errors import ConfigurationError
from tests.house import ROOT
from tests.launchers.jobs import is_running
from tests.processes import wait_until

TARGETS = "tests._core.fork_targets"


@pytest.fixture
def server() -> Iterator[ForkServer]:
    server = ForkServer(["json"])
    yield server
    server.close()


@contextlib.contextmanager
def sink(path: Path) -> Iterator[int]:
    with open(path, "ab") as file:
        yield file.fileno()


def start(server: ForkServer, target: str, name: str = "child", **arguments: Any) -> int:
    return server.start(name, f"{TARGETS}:{target}", arguments, stdout=1, stderr=2)


def test_arguments_may_be_large_and_streams_are_the_childs_own(
    server: ForkServer, tmp_path: Path
) -> None:
    with sink(tmp_path / "out") as out, sink(tmp_path / "err") as err:
        text = "x" * (3 << 20)
        server.start("a", f"{TARGETS}:say", {"text": text}, stdout=out, stderr=err)
        server.start("b", f"{TARGETS}:fail", {"message": "so it is"}, stdout=out, stderr=err)
        ends = {server.next_end(60.0), server.next_end(60.0)}
    assert ends == {("a", 0), ("b", 1)}
    assert (tmp_path / "out").read_text() == f"{len(text)} True\n"
    assert "ValueError: so it is" in (tmp_path / "err").read_text()


def test_descriptors_are_handed_on_in_their_order(server: ForkServer) -> None:
    files = [open(os.devnull) for _ in range(1100)]  # noqa: SIM115 - as columns of a wide data set
    pipes = [os.pipe() for _ in range(6)]
    ends = [write_end for _, write_end in pipes]
    arguments = {"start": "number "}
    server.start("child", f"{TARGETS}:write_to", arguments, stdout=1, stderr=2, descriptors=ends)
    assert server.next_end(60.0) == ("child", 0)
    for file in files:
        file.close()
    for number, (read_end, write_end) in enumerate(pipes):
        os.close(write_end)
        with open(read_end, "rb") as pipe:  # ends only if the server has kept no copy
            assert pipe.read() == f"number {number}".encode()


@pytest.mark.parametrize(
    ("arguments", "code"), [({"code": 143}, 143), ({"signal": 11}, -signal.SIGSEGV)]
)
def test_ends_are_told_as_they_were(
    server: ForkServer, arguments: dict[str, Any], code: int
) -> None:
    assert server.next_end(0.0) is None
    start(server, "end", **arguments)
    assert server.next_end(60.0) == ("child", code)


def test_killed_child_takes_what_it_has_started_with_it(server: ForkServer, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    pid = start(server, "start_child_and_wait", path=str(path))
    assert wait_until(path.exists)
    server.kill(pid)
    assert server.next_end(60.0) == ("child", -signal.SIGKILL)
    assert wait_until(lambda: not any(map(is_running, pids(path))))


def test_child_can_be_killed_as_soon_as_it_is_there(server: ForkServer, tmp_path: Path) -> None:
    for number in range(20):
        name = f"child {number}"
        path = str(tmp_path / name)
        server.kill(start(server, "start_child_and_wait", name, path=path))
        assert server.next_end(60.0) == (name, -signal.SIGKILL)


def test_nothing_is_left_when_the_server_closes(tmp_path: Path) -> None:
    server = ForkServer(["json"])
    paths = [tmp_path / str(number) for number in range(2)]
    for path in paths:
        start(server, "start_child_and_wait", path.name, path=str(path))
    assert wait_until(lambda: all(path.exists() for path in paths))
    server.close()
    assert not server.is_alive
    assert wait_until(lambda: not any(is_running(pid) for path in paths for pid in pids(path)))
    with pytest.raises(ConnectionError):
        start(server, "end", code=0)


def test_nothing_is_left_when_the_client_is_killed(tmp_path: Path) -> None:
    source = f"""
import time
from generic_trainer._core.forkserver import ForkServer
arguments = {{"path": {str(tmp_path / "pids")!r}}}
server = ForkServer(["json"])
server.start(
    "child", "{TARGETS}:start_child_and_wait", arguments, stdout=1, stderr=2
)
time.sleep(600)
"""
    client = subprocess.Popen([sys.executable, "-c", source], cwd=ROOT)
    assert wait_until((tmp_path / "pids").exists)
    client.kill()
    client.wait()
    assert wait_until(lambda: not any(map(is_running, pids(tmp_path / "pids"))))


@pytest.mark.parametrize("end", ["returns", "is killed", "with the server"])
def test_sessions_that_a_child_has_opened_end_with_the_last_child(
    end: str, server: ForkServer, tmp_path: Path
) -> None:
    path = tmp_path / "pids"
    pid = start(server, "leave_daemons", path=str(path), waits=end != "returns")
    assert wait_until(lambda: path.exists() and len(pids(path)) == 2)
    if end == "is killed":
        server.kill(pid)
    if end == "with the server":
        server.close()
    else:
        assert server.next_end(60.0) == ("child", 0 if end == "returns" else -signal.SIGKILL)
    assert not any(is_running(pid) for pid in pids(path))


@pytest.mark.parametrize("settings", [{}, {"installed_packages": []}], ids=["plain", "isolated"])
def test_preload_that_fails_is_wrong_configuration(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "users_own" if settings else "no_such_module"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "users_own.py").write_text("")
    with open(tmp_path / "output", "wb") as output:
        server = ForkServer(["json", module], output=output, **settings)
        try:
            with pytest.raises(ConfigurationError, match=f"could not import json, {module}"):
                server.wait_until_ready()
        finally:
            server.close()
    assert f"No module named '{module}'" in (tmp_path / "output").read_text()


def test_preload_that_crashes_is_wrong_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry would not help: TensorFlow may use an instruction that the processor lacks."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n"
    (tmp_path / "crashing.py").write_text(code)
    server = ForkServer(["crashing"])
    try:
        with pytest.raises(ConfigurationError, match="could not import crashing"):
            server.wait_until_ready()
    finally:
        server.close()


def test_killed_server_is_gone_and_told_so(server: ForkServer) -> None:
    pid = start(server, "start_child_and_wait", path=os.devnull + "-no-such-folder/pids")
    os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)
    with pytest.raises(ConnectionError):
        while True:
            server.next_end(60.0)
    assert not server.is_alive
    assert wait_until(lambda: not is_running(pid))


def pids(path: Path) -> list[int]:
    return [int(pid) for pid in path.read_text().split()]
