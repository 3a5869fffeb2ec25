"""When a fit saves."""

from __future__ import annotations

from typing import Any

from generic_trainer.training.resume._schedule import AgreedInterval, EveryInterval, EverySteps


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def due_steps(schedule: Any, clock: Clock, *, steps: int, step_s: float, cost_s: float) -> list:
    """Returns the steps after which a run saves whose steps and checkpoints take so long."""
    due = []
    for step in range(1, steps + 1):
        clock.now_s += step_s
        if schedule.is_due(step):
            due.append(step)
            clock.now_s += cost_s
            schedule.saved(step, cost_s)
    return due


def test_so_many_steps_apart() -> None:
    schedule = EverySteps(4, first_step=2)
    assert due_steps(schedule, Clock(), steps=12, step_s=1, cost_s=0) == [6, 10]


def test_so_much_time_apart() -> None:
    clock = Clock()
    schedule = EveryInterval(10, clock)
    assert due_steps(schedule, clock, steps=35, step_s=1, cost_s=0.1) == [10, 20, 30]


def test_saving_takes_at_most_3_percent_of_the_time() -> None:
    clock = Clock()
    schedule = EveryInterval(10, clock)
    assert due_steps(schedule, clock, steps=250, step_s=1, cost_s=3) == [10, 110, 210]


def test_workers_agree_on_a_step_by_the_mean_of_what_they_have_measured() -> None:
    clock = Clock()
    schedule = AgreedInterval(10, 0, lambda steps: (steps + 30) / 2, clock)
    # 1 s a step: this worker would wait for 10 steps, the other one for 30, so both do for 20.
    assert due_steps(schedule, clock, steps=70, step_s=1, cost_s=0) == [30, 60]
