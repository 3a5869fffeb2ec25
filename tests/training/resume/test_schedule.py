"""When a fit saves."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from generic_trainer.training.resume._schedule import Frequency, Schedule


def due_steps(
    frequency: Frequency,
    of_chief: Callable[[int], int] | None = None,
    *,
    steps: int,
    step_s: float = 1.0,
    cost_s: float,
    first_step: int = 0,
) -> list[int]:
    """Returns the steps after which a run saves whose steps and checkpoints take so long."""
    now_s, last_s, due = 0.0, 0.0, []
    schedule = Schedule(frequency, of_chief, lambda: now_s)
    schedule.saved(first_step)
    for step in range(1, steps + 1):
        now_s += step_s
        if schedule.is_due(step, last_s):
            due.append(step)
            now_s += cost_s
            last_s = cost_s
            schedule.saved(step)
    return due


def test_explicit_steps_are_exact_whatever_a_checkpoint_costs() -> None:
    assert due_steps(Frequency(steps=4), steps=12, cost_s=50, first_step=2) == [6, 10]
    assert due_steps(Frequency(steps=4), lambda steps: 1, steps=9, cost_s=50) == [4, 8]


@pytest.mark.parametrize("max_overhead", [None, 0.01])
def test_so_much_time_apart(max_overhead: float | None) -> None:
    frequency = Frequency(seconds=10, max_overhead=max_overhead)
    assert due_steps(frequency, steps=35, cost_s=0.1) == [10, 20, 30]


@pytest.mark.parametrize("of_chief", [None, lambda steps: steps])
def test_saving_takes_at_most_its_share_of_the_time(of_chief: Callable[[int], int] | None) -> None:
    # 2 s at 1 % are paid for by 200 steps of 1 s; the first one is due before it is known.
    frequency = Frequency(seconds=10, max_overhead=0.01)
    due = due_steps(frequency, of_chief, steps=450, cost_s=2)
    assert due[0] in (10, 11)
    assert len(due) == 3
    # Workers agree on a step beforehand, and leave out the last questions.
    assert all(196 <= later - one <= 204 for one, later in itertools.pairwise(due))


def test_workers_save_after_the_same_step_by_the_clock_of_the_chief() -> None:
    told: list[int] = []

    def of_chief(steps: int) -> int:
        told.append(steps)
        return steps

    # 2 ms a step, 10 ms a checkpoint: one a second, and a question now and then.
    frequency = Frequency(seconds=0.02, max_overhead=0.01)
    by_chief = due_steps(frequency, of_chief, steps=2000, step_s=0.002, cost_s=0.01)
    assert by_chief[0] == 10
    assert all(480 <= b - a <= 510 for a, b in itertools.pairwise(by_chief))
    assert len(told) <= 4 * len(by_chief)
    answers = iter(told)
    slower = due_steps(frequency, lambda steps: next(answers), steps=2000, step_s=0.005, cost_s=0.5)
    assert slower == by_chief
