"""Locks between threads and between processes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from generic_trainer._core.locks import DirectoryLock, held
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
