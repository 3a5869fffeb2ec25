"""Clock readings in callbacks, such as a deadline: another process has to move them.

A fit that is killed and resumed an hour later would end at once by a deadline that it had restored,
and would begin a new time limit without. What a callback has read from a clock is moved by the time
that has passed between the checkpoint and its restoration, so that this time does not count.
"""

import contextlib
import datetime
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import psutil

from generic_trainer.training.resume._held import cells_of, content_of

_ROUNDING_S = 1e-6
_UNITS_S = (1.0, 1e-3, 1e-6, 1e-9)  # of `time.time() * 1000` and `time.time_ns()`, for example
_SMALLEST = 1e9  # of whole numbers, and of others than seconds: smaller ones may be anything
_LONGEST_S = 1e7  # of limits that begin before the fit
_NUMBERS = (float, int, datetime.datetime)  # not classes derived from them
_FEW = 100  # members of a container


class _Set(NamedTuple):
    """A value, and when a hook set it, by each clock."""

    value: float
    since: list[float]  # before the hook
    until: list[float]  # after it
    first: list[float]  # since when the value may be there


def now() -> list[float]:
    """Returns the time in seconds by each clock that callbacks read.

    On Linux, `time.perf_counter` is `time.monotonic`.
    """
    return [time.time(), time.monotonic()]


class ClockReadings:
    """The readings of a clock that a callback's hooks have taken, or computed from one.

    They are attributes, or variables around functions, also in dicts and lists of these. Their
    values show it: from one run to another they change by as much as a clock does, within the
    duration of the hook. Other values hardly ever change by just as much. Those that are there
    before the fit begins may have been read since the process started. They have to be close to
    the clock, too.
    """

    def __init__(self, callback: Any, since: list[float]) -> None:
        """Takes a callback whose `on_train_begin` was called after `since`; see `now`."""
        self._callback = callback
        self._set: dict[str, _Set] = {}
        age_s = time.clock_gettime(time.CLOCK_REALTIME) - psutil.Process().create_time()
        self._note({}, since, [each - age_s for each in now()])

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Notes what a hook sets within the context."""
        before = self._numbers()
        since = now()
        yield
        self._note(before, since, since)

    def state(self) -> Any:
        """Returns the present state as plain data."""
        return {"now": now(), "set": {name: tuple(each) for name, each in self._set.items()}}

    def moves(self, state: Mapping[str, Any]) -> Iterator[Callable[[], None]]:
        """Yields what moves the readings in the callback, which has been restored.

        To do so twice changes nothing more: callbacks may share a dict.

        Args:
            state: the result of `state`, from another run.
        """
        passed = [new - old for new, old in zip(now(), state["now"], strict=True)]
        for name, (present, put) in _places(self._callback).items():
            if name not in self._set or name not in state["set"]:
                continue
            old, new = _Set(*state["set"][name]), self._set[name]
            is_set_anew = 2 * _number(present) < old.value  # to 0, for example
            if new.value in (old.value, _number(present)) or is_set_anew:
                continue
            if found := _clock(old, new):
                clock, unit_s = found
                yield functools.partial(put, _moved(present, passed[clock], unit_s))

    def _note(self, before: Mapping[str, float], since: list[float], first: list[float]) -> None:
        until = now()
        for name, value in self._numbers().items():
            if value != before.get(name):
                self._set[name] = _Set(value, since, until, first)

    def _numbers(self) -> dict[str, float]:
        return {name: _number(value) for name, (value, _) in _places(self._callback).items()}


def _clock(old: _Set, new: _Set) -> tuple[int, float] | None:
    """Returns the number of the clock that two values are readings of, and their unit in seconds.

    They were read in the hook; else since the process began, and then they are close to the clock.
    """
    for is_in_hook in (True, False):
        for unit_s, clock in itertools.product(_UNITS_S, range(len(new.until))):
            if unit_s != 1 and min(old.value, new.value) < _SMALLEST:
                continue
            rounding_s = unit_s if isinstance(new.value, int) else _ROUNDING_S
            earliest, start = ((x.since if is_in_hook else x.first)[clock] for x in (old, new))
            latest, end = old.until[clock], new.until[clock]
            if not is_in_hook and not (
                earliest - rounding_s <= old.value * unit_s <= latest + _LONGEST_S
                and start - rounding_s <= new.value * unit_s <= end + _LONGEST_S
            ):
                continue
            change_s = (new.value - old.value) * unit_s
            if start - latest - rounding_s <= change_s <= end - earliest + rounding_s:
                return clock, unit_s
    return None


def _moved(present: Any, shift_s: float, unit_s: float) -> Any:
    if isinstance(present, datetime.datetime):
        return present + datetime.timedelta(seconds=shift_s)
    is_whole = isinstance(present, int | np.integer)
    shift = round(shift_s / unit_s) if is_whole else shift_s / unit_s
    return type(present)(present + shift)


def _number(value: Any) -> float:
    if isinstance(value, datetime.datetime):
        return value.timestamp()
    return value.item() if isinstance(value, np.generic) else value


def _places(callback: Any) -> dict[str, tuple[Any, Callable[[Any], None]]]:
    """Returns the numbers and dates of a callback by their names, and what replaces them."""
    places: dict[str, tuple[Any, Callable[[Any], None]]] = {
        name: (value, functools.partial(setattr, callback, name))
        for name, value in vars(callback).items()
    }
    for name, cell, _ in cells_of(callback):
        places[name] = content_of(cell), functools.partial(setattr, cell, "cell_contents")
    for name, (value, _) in [*places.items()]:
        if isinstance(value, list | dict) and len(value) <= _FEW:
            for key, part in value.items() if isinstance(value, dict) else enumerate(value):
                places[f"{name}[{key!r}]"] = part, functools.partial(value.__setitem__, key)
    return {name: place for name, place in places.items() if _may_be_reading(place[0])}


def _may_be_reading(value: Any) -> bool:
    is_one = type(value) in _NUMBERS or isinstance(value, np.floating | np.integer)
    return is_one and not (isinstance(value, int | np.integer) and value < _SMALLEST)
