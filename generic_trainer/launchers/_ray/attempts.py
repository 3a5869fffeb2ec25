"""Attempts of a job whose workers stay: who runs, how workers have ended, and when to begin again.

The actor that directs the job keeps this. Its workers on the cluster outlive the processes that
train in them, with all that these have imported, so the next attempt needs neither a new job nor a
new worker where no worker itself was lost. Where one was, Ray Train replaces all of them.

1. Each worker asks for its `order`, trains, and tells with `done` how that ended.
2. The supervisor waits for ends, and says `end` and `begin`: it knows how many attempts there are.
3. Ray Train's controller tells which workers are `lost`, and when others have come (`gather`).
"""

from __future__ import annotations

import threading
from typing import Any

# How workers ended, in plain values: `WorkerEnd.to_dict`.
_End = dict[str, Any]


class Attempts:
    """The attempts of one job; workers, their controller and the supervisor call it in threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._group = self._number = 0
        self.open()

    def open(self) -> None:
        """Begins the first attempt of a job, whose workers are still to come."""
        with self._changed:
            self._size = 0
            self._is_running, self._is_over = True, False
            self._new_workers()
            self._new_attempt()

    def close(self) -> None:
        """Lets all workers go."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def gather(self, size: int) -> None:
        """Notes that there are new workers, and how many."""
        with self._changed:
            self._size = size
            self._new_workers()

    def lost(self, ends: list[_End]) -> None:
        """Notes that workers are lost, and ends the attempt: all of them will be replaced."""
        with self._changed:
            self._ends += ends
            self._is_running, self._is_gathered = False, False
            self._changed.notify_all()

    def group(self) -> int:
        """Returns the number of the workers that there are now."""
        with self._changed:
            return self._group

    def order(self, group: int, rank: int, after: int = 0) -> int | None:
        """Waits for the next attempt, and returns its number; None for a worker that can go.

        Args:
            group: what the worker belongs to.
            rank: its number.
            after: the attempt that it was in before.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._is_over
                    or group != self._group
                    or (self._is_gathered and self._is_running and self._number > after)
                )
            )
            if self._is_over or group != self._group:
                return None
            self._busy.add(rank)
            return self._number

    def done(self, group: int, rank: int, number: int, end: _End) -> int | None:
        """Notes how a worker ended, and waits for its next order.

        Args:
            group: what the worker belongs to.
            rank: its number.
            number: of the attempt.
            end: how it ended.
        """
        with self._changed:
            if (group, number) == (self._group, self._number):
                self._busy.discard(rank)
                if end["failure"] is None:
                    self._well.add(rank)
                    self._is_over = self._is_over or len(self._well) == self._size
                else:
                    self._ends.append(end)
                self._changed.notify_all()
        return self.order(group, rank, number)

    def wait_for_stop(self, group: int, number: int) -> None:
        """Waits until a worker that trains in an attempt has to stop."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._is_over
                    or not (self._is_running and self._is_gathered)
                    or (group, number) != (self._group, self._number)
                )
            )

    def wait_for_ends(self, seen: int) -> list[_End]:
        """Waits for another failure in this attempt, and returns all of them, the first one first.

        Args:
            seen: how many are known.
        """
        with self._changed:
            number = self._number
            self._changed.wait_for(lambda: number != self._number or len(self._ends) > seen)
            return list(self._ends)

    def end(self) -> None:
        """Ends the attempt, and waits until nothing of it is left."""
        with self._changed:
            self._is_running = False
            self._changed.notify_all()
            # Workers that are to be replaced are killed by Ray.
            self._changed.wait_for(lambda: not (self._busy and self._is_gathered))

    def begin(self) -> None:
        """Begins another attempt."""
        with self._changed:
            self._is_running = True
            self._new_attempt()

    def _new_attempt(self) -> None:
        self._number += 1
        self._ends: list[_End] = []
        self._well: set[int] = set()
        self._changed.notify_all()

    def _new_workers(self) -> None:
        self._group += 1
        self._is_gathered = True
        self._busy: set[int] = set()
        self._well = set()
        self._changed.notify_all()


_attempts = Attempts()
_ANSWER = f"{__name__}:answer"


def answer(method: str, *arguments: Any) -> Any:
    """Calls a method of the attempts that are kept in this process."""
    return getattr(_attempts, method)(*arguments)


def ask(director: Any, method: str, *arguments: Any) -> Any:
    """Calls a method of the `Attempts` that an actor keeps; returns a reference to the answer."""
    return director.call.remote(_ANSWER, method, *arguments)
