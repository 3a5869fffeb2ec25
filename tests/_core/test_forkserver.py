"""Children of a fork server: what they are given, how their ends are told, and that none stays."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from generic_trainer._core.forkserver import ForkServer, fork_server, kept_fork_servers, messages
from generic_trainer.errors import ConfigurationError

ROOT = Path(__file__).parents[2]
TARGETS = "tests._core.fork_targets"

pytestmark = pytest.mark.usefixtures("no_kept_fork_servers")


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


def wait_for(is_so: Callable[[], Any], timeout_s: float = 60.0) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "XZ"


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
    pipes = [os.pipe() for _ in range(6)]
    descriptors = [write_end for _, write_end in pipes]
    server.start(
        "child",
        f"{TARGETS}:write_to",
        {"start": "number "},
        stdout=1,
        stderr=2,
        descriptors=descriptors,
    )
    assert server.next_end(60.0) == ("child", 0)
    for number, (read_end, write_end) in enumerate(pipes):
        os.close(write_end)
        with open(read_end, "rb") as pipe:  # ends only if the server has kept no copy
            assert pipe.read() == f"number {number}".encode()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [({"code": 0}, 0), ({"code": 143}, 143), ({"signal": int(signal.SIGSEGV)}, -signal.SIGSEGV)],
)
def test_ends_are_told_as_they_were(
    server: ForkServer, arguments: dict[str, Any], code: int
) -> None:
    assert server.next_end(0.0) is None
    start(server, "end", **arguments)
    assert server.has_children
    assert server.next_end(60.0) == ("child", code)
    assert not server.has_children


def test_killed_child_takes_what_it_has_started_with_it(server: ForkServer, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    pid = start(server, "start_child_and_wait", path=str(path))
    assert wait_for(path.exists)
    server.kill(pid)
    assert server.next_end(60.0) == ("child", -signal.SIGKILL)
    assert wait_for(lambda: not any(map(is_running, pids(path))))


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
    assert wait_for(lambda: all(path.exists() for path in paths))
    server.close()
    assert not server.is_alive
    assert wait_for(lambda: not any(is_running(pid) for path in paths for pid in pids(path)))
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
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    client = subprocess.Popen([sys.executable, "-c", source], cwd=ROOT, env=environment)
    assert wait_for((tmp_path / "pids").exists)
    client.kill()
    client.wait()
    assert wait_for(lambda: not any(map(is_running, pids(tmp_path / "pids"))))


@pytest.mark.parametrize("end", ["returns", "is killed", "with the server"])
def test_sessions_that_a_child_has_opened_end_with_the_last_child(
    end: str, server: ForkServer, tmp_path: Path
) -> None:
    path = tmp_path / "pids"
    pid = start(server, "leave_daemons", path=str(path), waits=end != "returns")
    assert wait_for(lambda: path.exists() and len(pids(path)) == 2)
    if end == "is killed":
        server.kill(pid)
    if end == "with the server":
        server.close()
    else:
        assert server.next_end(60.0) == ("child", 0 if end == "returns" else -signal.SIGKILL)
    assert not any(is_running(pid) for pid in pids(path))


def test_preload_that_fails_is_wrong_configuration(tmp_path: Path) -> None:
    with open(tmp_path / "output", "wb") as output:
        server = ForkServer(["json", "no_such_module"], output=output)
        try:
            with pytest.raises(ConfigurationError, match="could not import json, no_such_module"):
                server.wait_until_ready()
        finally:
            server.close()
    assert "No module named 'no_such_module'" in (tmp_path / "output").read_text()


def test_preload_that_may_fail_may_fail() -> None:
    server = ForkServer(["json"], preload_if_there=["no_such_module"])
    server.wait_until_ready()
    server.close()


def test_killed_server_is_gone_and_told_so(server: ForkServer) -> None:
    pid = start(server, "start_child_and_wait", path=os.devnull + "-no-such-folder/pids")
    os.kill(parent(pid), signal.SIGKILL)
    with pytest.raises(ConnectionError):
        while True:
            server.next_end(60.0)
    assert not server.is_alive
    assert wait_for(lambda: not is_running(pid))


def test_isolated_server_sees_installed_packages_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "users_own.py").write_text("")
    with open(tmp_path / "output", "wb") as output:
        server = ForkServer(["users_own"], installed_packages=[], output=output)
        try:
            with pytest.raises(ConfigurationError):
                server.wait_until_ready()
        finally:
            server.close()


def test_children_start_where_many_files_are_open() -> None:
    with contextlib.ExitStack() as files:
        for _ in range(1100):  # as columns of a wide data set may be
            files.enter_context(open(os.devnull))
        server = ForkServer(["json"])
        files.callback(server.close)
        start(server, "end", code=3)
        assert server.next_end(60.0) == ("child", 3)


def test_kept_server_is_used_again_if_it_has_imported_the_same() -> None:
    environment = dict(os.environ)
    with kept_fork_servers():
        with fork_server(["json"], environment=environment) as first:
            first.wait_until_ready()
        with fork_server(["json"], environment={**environment, "OF_NO_IMPORT": "1"}) as second:
            assert second is first
        with fork_server(["json"], environment={**environment, "TF_SOMETHING": "1"}) as third:
            assert third is not first
        with fork_server(["json", "csv"], environment=environment) as fourth:
            assert fourth is not first
    assert not any(server.is_alive for server in (first, third, fourth))


@pytest.mark.parametrize("end", ["killed", "used"])
def test_dead_server_and_one_with_children_are_never_used_again(end: str, tmp_path: Path) -> None:
    with kept_fork_servers():
        with fork_server(["json"], environment=os.environ) as first:
            pid = start(first, "start_child_and_wait", path=str(tmp_path / "pids"))
            if end == "killed":
                os.kill(parent(pid), signal.SIGKILL)
                assert wait_for(lambda: not first.is_alive)
        with fork_server(["json"], environment=os.environ) as second:
            assert second is not first
    assert wait_for(lambda: not is_running(pid))


def test_child_of_a_kept_server_has_the_surroundings_of_who_asks_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept_fork_servers():
        with fork_server(["json"], environment=os.environ) as first:
            first.wait_until_ready()
        (tmp_path / "now").mkdir()
        monkeypatch.chdir(tmp_path / "now")
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        with fork_server(["json"], environment=os.environ) as second:
            assert second is first
            with sink(tmp_path / "said") as said:
                second.start("child", f"{TARGETS}:tell_where", {}, stdout=said, stderr=said)
            assert second.next_end(60.0) == ("child", 0)
    assert (tmp_path / "said").read_text().split() == [str(tmp_path / "now"), str(tmp_path)]


def test_server_that_has_imported_more_takes_the_place_of_one() -> None:
    with kept_fork_servers():
        with fork_server(["json"], environment=os.environ) as first:
            first.wait_until_ready()
        imports = {"preload_if_there": ["csv"], "environment": os.environ}
        with fork_server(["json"], **imports) as second:
            second.wait_until_ready()
        assert not first.is_alive
        with fork_server(["json"], environment=os.environ) as third:
            assert third is second


def test_only_few_servers_are_kept() -> None:
    with kept_fork_servers():
        servers = []
        for number in range(5):
            environment = {**os.environ, "TF_SOMETHING": str(number)}
            with fork_server(["json"], environment=environment) as server:
                servers.append(server)
                server.wait_until_ready()
        assert [server.is_alive for server in servers] == [False, False, True, True, True]


def test_server_is_not_kept_when_nobody_asks_for_it() -> None:
    with fork_server(["json"], environment=os.environ) as server:
        server.wait_until_ready()
    assert not server.is_alive


@pytest.fixture
def lender(server: ForkServer, tmp_path: Path) -> tuple[int, Callable[[], str]]:
    """A process that lends fork servers, and what returns its address."""
    pid = start(server, "lend", "lender", path=str(tmp_path / "lender"))
    assert wait_for((tmp_path / "lender").exists)
    return pid, (tmp_path / "lender").read_text


def test_what_a_lender_has_imported_outlives_who_has_asked_for_it(
    lender: tuple[int, Callable[[], str]],
) -> None:
    pid, find_lender = lender
    found = []
    for variable in ("OF_NO_IMPORT", "OF_NO_IMPORT", "TF_SOMETHING"):
        with (
            kept_fork_servers(find_lender),
            fork_server(["json"], environment={**os.environ, variable: "1"}) as borrowed,
        ):
            child = start(borrowed, "stay")
            found.append(parent(child))
            found.append(parent(found[-1]))
            borrowed.kill(child)
            assert borrowed.next_end(60.0) == ("child", -signal.SIGKILL) and borrowed.is_alive
        assert not borrowed.is_alive
    first, imported, second, again, _, other = found
    assert imported == again and first != second, "lent twice, imported once"
    assert [parent(other), is_running(imported)] == [pid, False], "what nobody needs is closed"
    assert wait_for(lambda: not any(map(is_running, found[::2])))


@pytest.mark.parametrize("killed", ["who asked", "lender"])
def test_lent_server_ends_with_who_asked_and_with_the_lender(
    killed: str, server: ForkServer, lender: tuple[int, Callable[[], str]], tmp_path: Path
) -> None:
    path = tmp_path / "pids"
    arguments = {"lender": lender[1](), "path": str(path)}
    asked = start(server, "borrow_and_wait", **arguments)
    assert wait_for(path.exists)
    borrowed = parent(pids(path)[0])
    server.kill(asked if killed == "who asked" else lender[0])
    assert wait_for(lambda: not any(map(is_running, [borrowed, *pids(path)])))
    if killed == "lender":
        with (
            kept_fork_servers(lender[1]),
            fork_server(["json"], environment=os.environ) as own,
        ):
            assert parent(parent(start(own, "stay"))) == os.getpid(), "imported here"


def test_nothing_is_asked_of_another_users_socket_nor_lent_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel, other = socket.socketpair()
    with channel, other:
        messages.check_user(channel)
        monkeypatch.setattr(os, "geteuid", lambda: -1)
        with pytest.raises(ConnectionError, match="of user"):
            messages.check_user(channel)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def pids(path: Path) -> list[int]:
    return [int(pid) for pid in path.read_text().split()]
