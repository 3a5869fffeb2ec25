"""Tests of `generic_trainer._core.scratch`: folders live exactly as long as their processes."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path

import psutil
import pytest

from generic_trainer._core import scratch
from generic_trainer._core.forkserver import ForkServer
from generic_trainer._core.scratch import (
    ScratchFolder,
    claimed,
    private_folder,
    sweep,
    unnamed_file,
)
from generic_trainer.errors import ConfigurationError
from tests._core import test_forkserver
from tests.house import ROOT
from tests.processes import wait_until

OWNER = """
import os, signal, sys, time
from generic_trainer._core.scratch import ScratchFolder, claimed
"""

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def temp_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of all temporary files, also of processes that are started."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process that works with folders; each `print` of it is a line to read."""
    with contextlib.ExitStack() as stack:

        def start(source: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", OWNER + textwrap.dedent(source)]
            started = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            process = stack.enter_context(started)
            stack.callback(process.kill)
            return process

        yield start


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def entries() -> list[str]:
    return sorted(os.listdir(private_folder()))


def mode(path: str | Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_folder_is_private_empty_and_gone_when_it_is_closed(temp_dir: Path) -> None:
    before = os.umask(0)
    try:
        with ScratchFolder("run-") as path:
            assert Path(path).parent.parent == temp_dir
            assert os.listdir(path) == []
            assert (mode(path), mode(private_folder())) == (0o700, 0o700)
            Path(path, "file").touch()
    finally:
        os.umask(before)
    assert entries() == []
    os.chmod(private_folder(), 0o777)
    folder = ScratchFolder("run-")
    assert mode(private_folder()) == 0o700
    folder.close()
    folder.close()
    with pytest.raises(ConfigurationError, match=r"cannot be made: .*set TMPDIR"):
        ScratchFolder("run-", str(temp_dir / "missing"))
    ScratchFolder("forgotten-")
    assert entries() == []


@pytest.mark.parametrize("kind", ["link", "file", "stranger"])
def test_what_is_not_ours_is_not_used(
    kind: str, temp_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = temp_dir / f"generic-trainer-{os.geteuid()}"
    target = temp_dir / "target"
    target.mkdir()
    if kind == "link":
        path.symlink_to(target)
    elif kind == "file":
        path.touch()
    else:
        user = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: user)
        path.with_name(f"generic-trainer-{user}").mkdir()
    with pytest.raises(ConfigurationError, match=r"must be a directory of user .*TMPDIR"):
        ScratchFolder("run-")
    assert os.listdir(target) == []


def test_killed_processes_leave_their_folders_to_the_next_one(start: Start) -> None:
    owners = [
        start(
            """
            folders = [ScratchFolder("run-"), ScratchFolder("code-")]
            deep = os.path.join(folders[0].path, "read", "only")
            os.makedirs(deep)
            open(os.path.join(deep, "file"), "w").close()
            os.chmod(deep, 0o500)
            print(folders[0].path, flush=True)
            time.sleep(600)
            """
        )
        for _ in range(3)
    ]
    paths = [line_of(owner) for owner in owners]
    for owner in owners:
        owner.kill()
        owner.wait()
    assert len(entries()) == 12
    with ScratchFolder("next-") as path:
        assert entries() == [Path(path).name, Path(path).name + ".lock"]
    assert not any(map(os.path.exists, paths))


def test_processes_that_come_go_and_are_killed_at_once_respect_each_other(start: Start) -> None:
    source = """
    print("starts", flush=True)
    for _ in range(int({rounds})):
        with ScratchFolder("run-") as path, ScratchFolder("code-") as other:
            open(os.path.join(path, "file"), "w").close()
            os.listdir(other)
            os.unlink(os.path.join(path, "file"))
    print("done", flush=True)
    """
    finishing = [start(source.format(rounds=200)) for _ in range(2)]
    for moment in range(10):
        killed = start(source.format(rounds=1e9))
        line_of(killed)
        time.sleep(0.0013 * moment)
        killed.kill()
        killed.wait()
    assert [(line_of(owner), line_of(owner)) for owner in finishing] == [("starts", "done")] * 2
    ScratchFolder("next-").close()
    assert entries() == []


def test_folder_stays_while_a_forked_child_of_its_process_lives(
    start: Start, tmp_path: Path
) -> None:
    staging = str(tmp_path / "staging")
    owner = start(
        f"""
        folder = ScratchFolder("run-")
        if not (first := os.fork()):
            folder.close()
            sys.exit()
        os.waitpid(first, 0)
        with claimed({staging!r}):
            if child := os.fork():
                print(folder.path, child, flush=True)
            time.sleep(600)
        """
    )
    path, child = line_of(owner).split()
    assert os.path.isdir(path)  # a child that exits deletes nothing
    told = rf"writes into {staging}: process {owner.pid} on "
    with pytest.raises(ConfigurationError, match=told), claimed(staging):
        pytest.fail("two have claimed it")
    owner.send_signal(signal.SIGSTOP)
    assert sweep([path]) == []
    owner.kill()
    owner.wait()
    assert sweep([path]) == []
    # Of another machine, or container, nobody knows here whether a process is alive.
    lock = Path(staging + scratch.LOCK_SUFFIX)
    signed = lock.read_text()
    lock.write_text(json.dumps({**json.loads(signed), "host": "elsewhere"}))
    with pytest.raises(ConfigurationError, match="on elsewhere"), claimed(staging):
        pytest.fail("two have claimed it")
    lock.write_text(signed)
    with claimed(staging):  # leftovers of a dead run stop no other run
        assert sweep([staging]) == []
    descriptor = os.pidfd_open(int(child))
    os.kill(int(child), signal.SIGKILL)
    assert wait([descriptor], 60.0)  # it is not a child of this process
    os.close(descriptor)
    assert sweep([path]) == [path]


def test_fork_server_its_children_and_other_programs_hold_no_lock() -> None:
    with ScratchFolder("run-") as path:
        server = ForkServer(["json"])
        try:
            note = Path(path, "pids")
            test_forkserver.start(server, "start_child_and_wait", path=str(note))
            assert wait_until(note.exists)
            child, program = map(int, note.read_text().split())
            parent = psutil.Process(child).ppid()
            lock = path + ".lock"
            assert lock in opened_by(os.getpid())
            assert not any(lock in opened_by(pid) for pid in (parent, child, program))
        finally:
            server.close()


def test_lock_of_another_machine_is_believed() -> None:
    folder = ScratchFolder("run-")
    signature = Path(folder.path + ".lock").read_text()
    folder.close()
    other = signature.replace('"host": "', '"host": "not-').replace('"boot": "', '"boot": "not-')
    path = os.path.join(private_folder(), "run-elsewhere")
    os.mkdir(path)
    Path(path + ".lock").write_text(other)
    assert sweep([path]) == []
    Path(path + ".lock").write_text(other[:20])  # torn: it was killed while it signed
    assert sweep([path]) == [path]


def test_file_system_without_locks_has_none_that_another_run_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(scratch.NO_LOCKS[0], "No locks available")

    (tmp_path / scratch.LOCK_SUFFIX).touch()
    monkeypatch.setattr(scratch.fcntl, "flock", refuse)
    with scratch.locks_held(str(tmp_path)) as alone:
        assert alone


def test_file_system_without_locks_is_not_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(scratch.NO_LOCKS[0], "No locks available")

    monkeypatch.setattr(scratch.fcntl, "flock", refuse)
    first = ScratchFolder("run-")
    second = ScratchFolder("run-")
    assert os.path.isdir(first.path)
    first.close()
    second.close()
    assert entries() == []


def test_unnamed_file_is_in_no_folder(tmp_path: Path) -> None:
    file = unnamed_file(str(tmp_path))
    try:
        assert os.listdir(tmp_path) == ["tmp"]
        assert (os.write(file, b"text"), os.pread(file, 10, 0)) == (4, b"text")
        assert stat.S_IMODE(os.fstat(file).st_mode) == 0o600
    finally:
        os.close(file)


def opened_by(pid: int) -> set[str]:
    return {file.path for file in psutil.Process(pid).open_files()}


def test_a_remote_folder_is_claimed_without_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = [*tmp_path.iterdir()]
    with claimed("gs://bucket/node/model_run/1.failed"):
        assert [*tmp_path.iterdir()] == before
