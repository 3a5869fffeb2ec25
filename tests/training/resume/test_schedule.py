"""When a fit saves."""

import itertools

from generic_trainer.training.resume._schedule import Schedule


def due_steps(
    *,
    steps: int,
    cost_s: float,
    every_steps: int | None = None,
    every_s: float | None = None,
    first_step: int = 0,
) -> list[int]:
    """Returns the steps after which a run saves, with steps of 1 s and checkpoints that cost."""
    now_s, last_s, due = 0.0, 0.0, []
    schedule = Schedule(every_steps, every_s, clock=lambda: now_s)
    schedule.saved(first_step)
    for step in range(1, steps + 1):
        now_s += 1.0
        if schedule.is_due(step, last_s):
            due.append(step)
            now_s += cost_s
            last_s = cost_s
            schedule.saved(step)
    return due


def test_what_the_user_asks_for_is_exact_whatever_a_checkpoint_costs() -> None:
    assert due_steps(every_steps=4, steps=12, cost_s=50, first_step=2) == [6, 10]
    assert due_steps(every_s=10, steps=35, cost_s=50) == [10, 20, 30]


def test_a_kill_at_any_moment_costs_ten_seconds_or_a_quarter_of_the_time_up_to_a_minute() -> None:
    due = due_steps(steps=1000, cost_s=0)
    for killed in range(1001):
        last = max((step for step in due if step <= killed), default=0)
        assert killed - last < max(10, min(killed / 4, 60)), (killed, last)
    assert due[:4] == [10, 20, 30, 40]
    assert due[-1] - due[-2] == 60


def test_a_replay_counts_as_no_time_that_could_be_lost() -> None:
    now_s = 0.0
    schedule = Schedule(None, None, clock=lambda: now_s)
    now_s = 300.0  # of a replay
    schedule.begin(9000)
    now_s = 310.0
    assert schedule.is_due(9100, 0.0)


def test_saving_takes_at_most_its_share_of_the_time() -> None:
    # 2 s at 1 % are paid for by 200 steps of 1 s; the first one is due before it is known.
    due = due_steps(steps=480, cost_s=2)
    assert due[0] == 10
    assert [b - a for a, b in itertools.pairwise(due)] == [200, 200]
