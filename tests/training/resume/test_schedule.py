"""When a fit saves."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest

from generic_trainer._core.machine import available_cpus
from generic_trainer.training.resume._schedule import Agreed, Alone, Frequency, cost_s


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def due_steps(
    make: Callable[[Clock], Any], *, steps: int, step_s: float, cost_s: float
) -> list[int]:
    """Returns the steps after which a run saves whose steps and checkpoints take so long."""
    clock = Clock()
    schedule, last_s, due = make(clock), 0.0, []
    for step in range(1, steps + 1):
        clock.now_s += step_s
        if schedule.is_due(step, last_s):
            due.append(step)
            clock.now_s += cost_s
            last_s = cost_s
            schedule.saved(step)
    return due


def alone(frequency: Frequency, first_step: int = 0) -> Callable[[Clock], Alone]:
    return lambda clock: Alone(frequency, first_step, clock)


def agreed(
    frequency: Frequency, of_chief: Callable[[int], int] = lambda steps: steps
) -> Callable[[Clock], Agreed]:
    return lambda clock: Agreed(frequency, 0, of_chief, clock)


def test_so_many_steps_apart() -> None:
    made = alone(Frequency(steps=4), first_step=2)
    assert due_steps(made, steps=12, step_s=1, cost_s=0) == [6, 10]


def test_so_much_time_apart() -> None:
    made = alone(Frequency(seconds=10))
    assert due_steps(made, steps=35, step_s=1, cost_s=0.1) == [10, 20, 30]


@pytest.mark.parametrize("of", [alone, agreed])
@pytest.mark.parametrize("frequency", [Frequency(steps=10), Frequency(seconds=10)])
def test_saving_takes_at_most_its_share_of_the_time(of: Any, frequency: Frequency) -> None:
    # 2 s at 1 % are paid for by 200 steps of 1 s; the first one is due before it is known.
    due = due_steps(of(frequency), steps=450, step_s=1, cost_s=2)
    assert due[0] in (10, 11)
    assert len(due) == 3
    # Workers agree on a step beforehand, and leave out the last questions.
    assert all(196 <= later - one <= 204 for one, later in itertools.pairwise(due))


def test_a_checkpoint_that_costs_little_comes_when_it_was_asked_for() -> None:
    made = alone(Frequency(steps=10))
    assert due_steps(made, steps=35, step_s=1, cost_s=0.09) == [10, 20, 30]


def test_without_a_limit_the_steps_are_exact_whatever_a_checkpoint_costs() -> None:
    made = alone(Frequency(steps=10, max_overhead=None))
    assert due_steps(made, steps=35, step_s=1, cost_s=50) == [10, 20, 30]


def test_one_that_comes_later_than_asked_for_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        due_steps(alone(Frequency(steps=1)), steps=50, step_s=1, cost_s=0.1)
    (said,) = caplog.messages
    assert said == (
        "Checkpoints are further apart than every_steps=1: one costs 0.1 s of training, and "
        "max_overhead=0.01 allows for that every 10 s."
    )


def test_workers_save_after_the_same_step_by_the_clock_of_the_chief() -> None:
    told: list[int] = []

    def of_chief(steps: int) -> int:
        told.append(steps)
        return steps

    # 2 ms a step, 10 ms a checkpoint: one a second, and a question now and then.
    asking = agreed(Frequency(steps=10), of_chief)
    by_chief = due_steps(asking, steps=2000, step_s=0.002, cost_s=0.01)
    assert by_chief[0] == 10
    assert all(480 <= b - a <= 510 for a, b in itertools.pairwise(by_chief))
    assert len(told) <= 4 * len(by_chief)
    answers = iter(told)
    slower = agreed(Frequency(steps=10), lambda steps: next(answers))
    assert due_steps(slower, steps=2000, step_s=0.005, cost_s=0.5) == by_chief


def test_the_cost_is_that_of_training_and_not_of_processors_that_it_does_not_need() -> None:
    assert cost_s(0.003, 0.0) == 0.003
    assert cost_s(0.003, 0.013) == pytest.approx(0.016)
    processors = len(available_cpus())
    assert cost_s(0.0, 8.0 * processors) == pytest.approx(8.0)
