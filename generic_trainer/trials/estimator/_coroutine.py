"""A function that pauses in the middle, at places that it does not know of.

`Estimator.train` runs from the first batch to the last and calls hooks on the way. Between two
workloads a trial validates and saves with the session that it has open: a hook has to wait there.
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Coroutine"]


class Coroutine:
    """A function in a thread of its own; of it and its caller one runs at a time.

    Attributes:
        closing: whether `pause` will not be answered any more: the function should end.
        started: whether the function was called.
        ended: whether it has returned or raised.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        """Takes the function, which calls `pause` wherever it is to wait."""
        self.closing = self.started = self.ended = False
        self._function = function
        self._orders: queue.Queue[Any] = queue.Queue()
        self._replies: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue()
        # A thread starts with no context variables: get_experiment_config() would know nothing.
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._run,), daemon=True)

    def resume(self, order: Any = None) -> Any:
        """Lets the function go on to its next pause and returns what that was given.

        The first call starts the function. When the function has ended, None is returned.

        Args:
            order: what `pause` returns.

        Raises:
            Exception: what the function raised.
            RuntimeError: it has ended before.
        """
        if self.ended:
            raise RuntimeError("the function has ended and cannot go on")
        if self.started:
            self._orders.put(order)
        else:
            self.started = True
            self._thread.start()
        value, error = self._replies.get()
        if error is not None:
            raise error
        return value

    def pause(self, value: Any = None) -> Any:
        """Called in the function: waits for the next `resume` and returns its order."""
        self._replies.put((value, None))
        return self._orders.get()

    def close(self) -> None:
        """Makes the function end, and waits for it."""
        self.closing = True
        self._orders.put(None)
        if self.started:
            self._thread.join()

    def _run(self) -> None:
        error = None
        try:
            self._function()
        except BaseException as raised:  # told to the caller, whatever it is
            error = raised
        self.ended = True
        self._replies.put((None, error))
