"""What counts as progress of a worker, and what does not."""

import dataclasses
from typing import Any

import pytest

from generic_trainer._core.cluster import Task
from generic_trainer._core.machine import Usage
from generic_trainer.launchers import Distribution
from generic_trainer.launchers._local.resources import Limits

CHIEF = Task("chief", 0)
HEARTBEAT_S = 600.0


def hangs(*, every_s: float, start: Usage | None = None, **each_time: Any) -> bool:
    """Whether a worker counts as stuck that does something at times, and is looked at each second.

    Args:
        every_s: how often.
        start: what it has used so far.
        each_time: by how much what fields of its `Usage` grow then.
    """
    now_s = 0.0
    usage = start or Usage(
        cpu_s=30.0, main_thread_s=20.0, moved_bytes=10**9, main_thread_bytes=10**6
    )
    distribution = Distribution(launcher="local", heartbeat_s=HEARTBEAT_S)
    limits = Limits(distribution, {CHIEF: 1}, clock=lambda: now_s, usage_of=lambda _: usage)
    while now_s < 3 * HEARTBEAT_S:
        now_s += 1.0
        if now_s % every_s == 0:
            usage = dataclasses.replace(
                usage, **{name: getattr(usage, name) + by for name, by in each_time.items()}
            )
        limits.look({CHIEF: 1})
        if limits.all_idle([CHIEF]):
            return True
    return False


@pytest.mark.parametrize(
    "each_time",
    [
        {"cpu_s": 1.0},  # a compilation, a loop in native code
        {"cpu_s": 0.01, "main_thread_s": 0.004},  # a step, while a GPU works; a look at a service
        {"main_thread_bytes": 30, "moved_bytes": 30},  # a line of output
        {"moved_bytes": 4096},  # a record that another thread has read
        {"cpu_s": -2.0, "moved_bytes": -(10**6)},  # the end of a program that it has started
    ],
)
def test_progress_now_and_then_is_no_hang(each_time: dict[str, float]) -> None:
    assert not hangs(every_s=590.0, **each_time)
    assert hangs(every_s=610.0, **each_time)


def test_sleeping_and_looking_again_is_a_hang() -> None:
    assert hangs(every_s=1.0, cpu_s=0.0003, main_thread_s=0.0003)


def test_members_of_a_cluster_that_only_look_after_each_other_hang() -> None:
    assert hangs(every_s=2.0, cpu_s=0.01, moved_bytes=96)


def test_any_time_of_the_main_thread_counts_where_nothing_else_is_known() -> None:
    unknown = Usage(cpu_s=30.0, main_thread_s=20.0)
    assert not hangs(start=unknown, every_s=1.0, main_thread_s=0.0003)
    assert hangs(start=unknown, every_s=1.0, cpu_s=0.0003)
