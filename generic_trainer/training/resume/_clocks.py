"""Clock readings in callbacks, such as a deadline: another process has to move them.

A fit that is killed and resumed an hour later would end at once by a deadline that it had restored,
and would begin a new time limit without. What a callback has read from a clock is moved by the time
that has passed between the checkpoint and its restoration, so that this time does not count.
"""

import contextlib
import datetime
import time
from collections.abc import Iterator, Mapping
from typing import Any

_ROUNDING_S = 1e-6


def now() -> list[float]:
    """Returns the time in seconds by each clock that callbacks read.

    On Linux, `time.perf_counter` is `time.monotonic`.
    """
    return [time.time(), time.monotonic()]


class ClockReadings:
    """The attributes of a callback that its hooks have computed from a clock.

    Their values show it: from one run to another they change by as much as a clock does, within the
    duration of the hook. Other values hardly ever change by just as much.
    """

    def __init__(self, callback: Any, since: list[float]) -> None:
        """Takes a callback whose `on_train_begin` was called after `since`; see `now`."""
        self._callback = callback
        # Attribute → its value, and the times before and after the hook that set it.
        self._set: dict[str, tuple[float, list[float], list[float]]] = {}
        self._note({}, since)

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Notes the attributes that a hook sets within the context."""
        before = self._seconds()
        since = now()
        yield
        self._note(before, since)

    def state(self) -> Any:
        """Returns the present state as plain data."""
        return {"now": now(), "set": dict(self._set)}

    def move(self, state: Mapping[str, Any]) -> None:
        """Moves the readings among the attributes, which have been restored.

        Args:
            state: the result of `state`, from another run; empty changes nothing.
        """
        passed = [new - old for new, old in zip(now(), state.get("now", ()), strict=False)]
        for name, (value, *old) in state.get("set", {}).items():
            if name not in self._set or name not in vars(self._callback):
                continue
            own, *new = self._set[name]
            for (earliest, latest), (start, end), shift in zip(
                zip(*old, strict=True), zip(*new, strict=True), passed, strict=True
            ):
                is_within = start - latest <= own - value <= end - earliest
                is_close = min(abs(own - value - edge) for edge in (start - latest, end - earliest))
                if own != value and (is_within or is_close < _ROUNDING_S):
                    restored = vars(self._callback)[name]
                    is_date = isinstance(restored, datetime.datetime)
                    moved = datetime.timedelta(seconds=shift) if is_date else shift
                    setattr(self._callback, name, restored + moved)
                    break

    def _note(self, before: Mapping[str, float], since: list[float]) -> None:
        until = now()
        for name, value in self._seconds().items():
            if value != before.get(name):
                self._set[name] = value, since, until

    def _seconds(self) -> dict[str, float]:
        return {
            name: value.timestamp() if isinstance(value, datetime.datetime) else value
            for name, value in vars(self._callback).items()
            if type(value) in (float, datetime.datetime)
        }
