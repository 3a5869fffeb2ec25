"""When to save: rarely enough to cost nothing that is felt."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["AgreedInterval", "EveryInterval", "EverySteps", "Schedule", "check_intervals"]

# Share of the time that saving may take where the interval is given in seconds.
_LARGEST_SHARE = 0.03
# The first steps trace and warm up; their time says little about those that follow.
_STEPS_TO_AGREE = 10


class Schedule(Protocol):
    """Tells after each step whether a checkpoint is due."""

    def is_due(self, step: int) -> bool:
        """Whether to save after this step."""

    def saved(self, step: int, cost_s: float) -> None:
        """Notes that a checkpoint was saved after this step, which took `cost_s` seconds."""


class EverySteps:
    """Due when at least so many steps have passed."""

    def __init__(self, every_steps: int, first_step: int) -> None:
        self._every_steps = every_steps
        self._last_step = first_step

    def is_due(self, step: int) -> bool:
        """See `Schedule`."""
        return step - self._last_step >= self._every_steps

    def saved(self, step: int, cost_s: float) -> None:
        """See `Schedule`."""
        self._last_step = step


class EveryInterval:
    """Due when so much time has passed, and so much that saving takes at most 3 % of it."""

    def __init__(self, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._due_at_s = clock() + every_s

    def is_due(self, step: int) -> bool:
        """See `Schedule`."""
        return self._clock() >= self._due_at_s

    def saved(self, step: int, cost_s: float) -> None:
        """See `Schedule`."""
        self._due_at_s = self._clock() + max(self._every_s, cost_s / _LARGEST_SHARE)


class AgreedInterval:
    """The same for workers that must all save after the same step, whatever their clocks say."""

    def __init__(
        self,
        every_s: float,
        first_step: int,
        mean: Callable[[float], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts to time the steps.

        Args:
            every_s: seconds between two checkpoints.
            first_step: the step that the run starts at.
            mean: returns the mean over all workers; all of them call it after the same step.
            clock: tells the time in seconds.
        """
        self._every_s = every_s
        self._mean = mean
        self._clock = clock
        self._cost_s = 0.0
        self._due_step: int | None = None
        self._mark(first_step)

    def is_due(self, step: int) -> bool:
        """See `Schedule`."""
        if self._due_step is None and step - self._first_step >= _STEPS_TO_AGREE:
            step_s = (self._clock() - self._start_s) / (step - self._first_step)
            interval_s = max(self._every_s, self._cost_s / _LARGEST_SHARE)
            self._due_step = step + max(1, round(self._mean(interval_s / max(step_s, 1e-9))))
        return self._due_step is not None and step >= self._due_step

    def saved(self, step: int, cost_s: float) -> None:
        """See `Schedule`."""
        self._cost_s = cost_s
        self._due_step = None
        self._mark(step)

    def _mark(self, step: int) -> None:
        self._first_step = step
        self._start_s = self._clock()


def check_intervals(every_steps: int | None, every_s: float | None) -> list[str]:
    """Returns what is wrong with the intervals, one sentence each."""
    problems = []
    if every_steps is not None and every_s is not None:
        problems.append("expected every_steps or every_s, found both")
    if every_steps is not None and every_steps < 1:
        problems.append(f"every_steps: expected at least 1, found {every_steps}")
    if every_s is not None and every_s <= 0:
        problems.append(f"every_s: expected more than 0 s, found {every_s}")
    return problems
