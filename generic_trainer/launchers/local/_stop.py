"""SIGTERM to the process that has started the workers."""

from __future__ import annotations

import signal
import threading
from types import TracebackType
from typing import Any

__all__ = ["StopNotice"]


class StopNotice:
    """Notes SIGTERM instead of dying from it, while the context is open.

    Outside the main thread, where Python permits no signal handlers, SIGTERM keeps its effect; the
    workers then die with this process.
    """

    def __init__(self) -> None:
        self.received = False

    def __enter__(self) -> StopNotice:
        self._listens = threading.current_thread() is threading.main_thread()
        if self._listens:
            self._before: Any = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._listens:
            signal.signal(signal.SIGTERM, self._before)

    def _note(self, signum: int, frame: Any) -> None:
        self.received = True
