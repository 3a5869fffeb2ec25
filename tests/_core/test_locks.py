"""Locks between threads and between processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from generic_trainer._core.locks import DirectoryLock, held, locks_held
from generic_trainer.errors import ConfigurationError


def test_waiting_for_the_lock_ends_when_it_is_released(tmp_path: Path) -> None:
    first = DirectoryLock(str(tmp_path))
    second = DirectoryLock(
        str(tmp_path), wait_s=60, clock=lambda: 0.0, sleep=lambda _: first.release()
    )
    second.release()


def test_waiting_for_the_lock_ends_in_time(tmp_path: Path) -> None:
    first = DirectoryLock(str(tmp_path))
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with pytest.raises(ConfigurationError, match="waited 5 s"):
        DirectoryLock(str(tmp_path), wait_s=5, clock=lambda: now[0], sleep=sleep)
    assert now[0] == pytest.approx(5, abs=0.3)
    first.release()


def test_a_released_lock_is_free_and_may_be_released_again(tmp_path: Path) -> None:
    first = DirectoryLock(str(tmp_path))
    first.release()
    first.release()
    DirectoryLock(str(tmp_path)).release()


def test_a_directory_that_goes_while_it_is_waited_for_is_made_again(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    first = DirectoryLock(str(directory))

    def publish(_: float) -> None:
        shutil.rmtree(directory)
        first.release()

    second = DirectoryLock(str(directory), wait_s=60, clock=lambda: 0.0, sleep=publish)
    assert (directory / ".lock").exists()
    second.release()


HOLD = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_tree_is_free_unless_another_process_has_a_lock_in_it(tmp_path: Path) -> None:
    (tmp_path / "fit").mkdir()
    DirectoryLock(str(tmp_path / "fit")).release()
    own = DirectoryLock(str(tmp_path))
    with locks_held(str(tmp_path)) as alone:
        assert alone
        with pytest.raises(ConfigurationError, match="Another run writes into"):
            DirectoryLock(str(tmp_path / "fit"))
    own.release()
    command = [sys.executable, "-I", "-c", HOLD, str(tmp_path / "fit" / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with locks_held(str(tmp_path)) as alone:
            assert not alone
        other.communicate()
    with locks_held(str(tmp_path)) as alone:
        assert alone


def test_a_thread_that_waits_says_so_and_one_that_holds_does_not() -> None:
    lock, waits, waiting = threading.RLock(), [], threading.Event()

    def wait(name: str) -> None:
        waits.append(name)
        waiting.set()

    def work() -> None:
        with held(lock, lambda: wait("second")):
            pass

    with held(lock, lambda: wait("first")), held(lock, lambda: wait("first again")):
        thread = threading.Thread(target=work)
        thread.start()
        assert waiting.wait(10)
    thread.join()
    assert waits == ["second"]
