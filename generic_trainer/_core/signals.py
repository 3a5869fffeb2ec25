"""SIGTERM, noted instead of obeyed, so that there is time to save."""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import Any

PREEMPTED_EXIT_CODE = 128 + signal.SIGTERM  # what a shell and Kubernetes call it

_logger = logging.getLogger(__name__)


class SigtermNotice:
    """Notes SIGTERM from its making to its closing; the attribute `received` tells.

    With a grace period somebody has to ask in time (and save, and end): if nobody closes the notice
    within it (a step that hangs, a long evaluation, a loop that has ended in an error), the process
    exits with code 143 as if it had not waited. Outside the main thread, where Python permits no
    signal handlers, SIGTERM keeps its effect.

    Attributes:
        received: whether SIGTERM has come.
    """

    def __init__(self, grace_s: float | None = None) -> None:
        """Starts to listen.

        Args:
            grace_s: seconds after which the process exits all the same; None waits for ever.
        """
        self.received = False
        self._grace_s = grace_s
        self._timer: threading.Timer | None = None
        self._listens = threading.current_thread() is threading.main_thread()
        if self._listens:
            self._before: Any = signal.signal(signal.SIGTERM, self._note)

    def __enter__(self) -> SigtermNotice:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives SIGTERM the effect back that it had; doing so twice is no error."""
        if self._timer is not None:
            self._timer.cancel()
        if self._listens:
            self._listens = False
            if signal.getsignal(signal.SIGTERM) == self._note:  # else a later notice restores it
                signal.signal(signal.SIGTERM, self._handler_before())

    def _handler_before(self) -> Any:
        """Returns the handler to go back to: not that of a notice which was closed meanwhile."""
        handler = self._before
        while isinstance(owner := getattr(handler, "__self__", None), SigtermNotice):
            if owner._listens:
                break
            handler = owner._before
        return handler or signal.SIG_DFL  # None: it was not set from Python, and cannot be

    def _note(self, signum: int, frame: Any) -> None:
        if self.received:
            return
        self.received = True
        if self._grace_s is not None:
            self._timer = threading.Timer(self._grace_s, _exit, [self._grace_s])
            self._timer.daemon = True
            self._timer.start()


def _exit(grace_s: float) -> None:
    _logger.error("No step ended within %g s after SIGTERM: exiting without a checkpoint", grace_s)
    logging.shutdown()
    os._exit(PREEMPTED_EXIT_CODE)
