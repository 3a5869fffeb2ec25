"""Attempts of workers that stay: who begins when, and who is let go."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Any

import pytest

from generic_trainer.launchers._ray.attempts import Attempts

WELL: dict[str, Any] = {"failure": None}
LOST: dict[str, Any] = {"failure": "LOST"}

Call = Callable[..., "Future[Any]"]


@pytest.fixture
def attempts() -> Attempts:
    """The attempts of a job with two workers, which are there."""
    attempts = Attempts()
    attempts.gather(2)
    return attempts


@pytest.fixture
def call(attempts: Attempts) -> Any:
    """Calls a method in a thread of its own."""
    with ThreadPoolExecutor(8) as threads:
        yield lambda method, *arguments: threads.submit(getattr(attempts, method), *arguments)
        attempts.open()
        attempts.close()


def waits(*calls: Future[Any]) -> bool:
    return not wait_for(calls, 0.05, "FIRST_COMPLETED").done


def begun(attempts: Attempts) -> tuple[int, int]:
    """Has both workers begin, and returns their group and the number of the attempt."""
    group = attempts.group()
    numbers = {attempts.order(group, rank) for rank in (0, 1)}
    assert len(numbers) == 1
    return group, int(numbers.pop() or 0)


def test_workers_go_when_all_have_ended_well(attempts: Attempts, call: Call) -> None:
    group, number = begun(attempts)
    first = call("done", group, 0, number, WELL)
    assert waits(first)
    assert attempts.done(group, 1, number, WELL) is None
    assert first.result(5) is None


def test_workers_begin_again_when_nothing_of_the_last_attempt_runs(
    attempts: Attempts, call: Call
) -> None:
    group, number = begun(attempts)
    stop, told = call("wait_for_stop", group, number), call("wait_for_ends", 0)
    lost = call("done", group, 1, number, LOST)
    assert told.result(5) == [LOST]
    assert waits(stop, lost)  # whether there is another attempt is not known yet
    ended = call("end")
    stop.result(5)
    assert waits(ended)
    stopped = call("done", group, 0, number, LOST)
    ended.result(5)
    assert waits(lost, stopped)
    attempts.begin()
    assert lost.result(5) == stopped.result(5) == number + 1
    assert waits(call("wait_for_ends", 0))


def test_workers_that_are_to_be_replaced_do_not_begin_again(attempts: Attempts, call: Call) -> None:
    group, number = begun(attempts)
    told = call("wait_for_ends", 0)
    attempts.lost([LOST])
    assert told.result(5) == [LOST]
    attempts.wait_for_stop(group, number)
    attempts.end()  # without a word of theirs
    attempts.begin()
    old = call("done", group, 0, number, LOST)
    assert waits(old)
    attempts.gather(1)
    assert old.result(5) is None
    new = attempts.group()
    again = attempts.order(new, 0)
    assert again == number + 1
    assert attempts.done(new, 0, again, WELL) is None


def test_new_workers_wait_until_there_is_an_attempt(attempts: Attempts, call: Call) -> None:
    begun(attempts)
    attempts.lost([LOST])
    attempts.gather(2)
    order = call("order", attempts.group(), 0)
    assert waits(order)
    attempts.end()
    attempts.begin()
    assert isinstance(order.result(5), int)


def test_ends_of_other_attempts_count_for_nothing(attempts: Attempts, call: Call) -> None:
    group, number = begun(attempts)
    attempts.lost([LOST])
    attempts.open()  # the job begins anew
    attempts.gather(1)
    told = call("wait_for_ends", 0)
    assert attempts.done(group, 0, number, LOST) is None
    assert waits(told)
    new = attempts.group()
    assert attempts.done(new, 0, attempts.order(new, 0) or 0, WELL) is None


def test_all_are_let_go_whatever_they_wait_for(attempts: Attempts, call: Call) -> None:
    group, number = begun(attempts)
    calls = [call("done", group, 0, number, LOST), call("wait_for_stop", group, number)]
    assert waits(*calls)
    attempts.close()
    assert [each.result(5) for each in calls] == [None, None]
