"""Locks between threads and between processes."""

import shutil
import threading
from pathlib import Path

import pytest

from generic_trainer._core import scratch
from generic_trainer._core.scratch import held, lock_directory, locks_held
from generic_trainer.errors import ConfigurationError
from tests.processes import locked_elsewhere


class Clock:
    """Stands in for the module `time`."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.meanwhile()

    def meanwhile(self) -> None:
        """Does something while another waits; a test sets it."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(scratch, "time", clock)
    return clock


def test_a_directory_that_goes_while_it_is_waited_for_is_made_again(
    tmp_path: Path, clock: Clock
) -> None:
    directory = tmp_path / "checkpoints"
    first = lock_directory(str(directory))

    def publish() -> None:
        shutil.rmtree(directory)
        first.close()

    clock.meanwhile = publish
    second = lock_directory(str(directory), wait_s=300)
    assert (directory / ".lock").exists()
    second.close()


def test_waiting_for_the_lock_ends_in_time(tmp_path: Path, clock: Clock) -> None:
    first = lock_directory(str(tmp_path))
    with pytest.raises(ConfigurationError, match="waited 5 s"):
        lock_directory(str(tmp_path), wait_s=5)
    assert clock.now_s == pytest.approx(5, abs=0.3)
    first.close()
    first.close()
    lock_directory(str(tmp_path)).close()


def test_a_tree_is_free_unless_another_process_has_a_lock_in_it(tmp_path: Path) -> None:
    (tmp_path / "fit").mkdir()
    lock_directory(str(tmp_path / "fit")).close()
    own = lock_directory(str(tmp_path))
    with locks_held(str(tmp_path)) as alone:
        assert alone
        with pytest.raises(ConfigurationError, match="Another run writes into"):
            lock_directory(str(tmp_path / "fit"))
    own.close()
    lock = tmp_path / "fit" / ".lock"
    with locked_elsewhere(lock), locks_held(str(tmp_path)) as alone:
        assert not alone
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
