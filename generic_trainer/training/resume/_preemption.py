"""SIGTERM while a model trains: the last chance to save."""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import Any

__all__ = ["PREEMPTED_EXIT_CODE", "PreemptionNotice"]

PREEMPTED_EXIT_CODE = 128 + signal.SIGTERM  # what a shell and Kubernetes call it

_logger = logging.getLogger(__name__)


class PreemptionNotice:
    """Notes SIGTERM instead of dying from it, for a limited time.

    Who trains asks `received` after each step, saves, and stops. If nobody has asked within the
    grace period (a step that hangs, a long evaluation, a loop that has ended in an error), the
    process exits with code 143 as if it had not waited. Outside the main thread, where Python
    permits no signal handlers, SIGTERM keeps its effect.
    """

    def __init__(self, grace_s: float) -> None:
        """Starts to listen."""
        self.received = False
        self._grace_s = grace_s
        self._timer: threading.Timer | None = None
        self._listens = threading.current_thread() is threading.main_thread()
        if self._listens:
            self._before: Any = signal.signal(signal.SIGTERM, self._note)

    def close(self) -> None:
        """Gives SIGTERM the effect back that it had."""
        if self._timer is not None:
            self._timer.cancel()
        if self._listens:
            self._listens = False
            signal.signal(signal.SIGTERM, self._before)

    def _note(self, signum: int, frame: Any) -> None:
        if self.received:
            return
        self.received = True
        self._timer = threading.Timer(self._grace_s, _exit, [self._grace_s])
        self._timer.daemon = True
        self._timer.start()


def _exit(grace_s: float) -> None:
    _logger.error("No step ended within %g s after SIGTERM: exiting without a checkpoint", grace_s)
    logging.shutdown()
    os._exit(PREEMPTED_EXIT_CODE)
