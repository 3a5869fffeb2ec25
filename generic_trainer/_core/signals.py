"""SIGTERM, recorded instead of obeyed, so that there is time to save."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from typing import Any

PREEMPTED_EXIT_CODE = 128 + signal.SIGTERM  # as shells and Kubernetes report it

_logger = logging.getLogger(__name__)


class SigtermNotice(contextlib.AbstractContextManager["SigtermNotice"]):
    """Records SIGTERM in the attribute `received` until it is closed.

    With a grace period, the training loop has to check `received`, save and close the notice in
    time. If it does not (a step hangs, an evaluation takes long, the loop has failed), the process
    exits with code 143, as without the notice. Outside the main thread, where Python permits no
    signal handlers, SIGTERM keeps its effect.

    Attributes:
        received: whether SIGTERM has arrived.
    """

    def __init__(self, grace_s: float | None = None) -> None:
        """Starts to listen.

        Args:
            grace_s: seconds until the process exits anyway; None waits for ever.
        """
        self.received = False
        self._grace_s = grace_s
        self._timer: threading.Timer | None = None
        self._listens = threading.current_thread() is threading.main_thread()
        if self._listens:
            self._before: Any = signal.signal(signal.SIGTERM, self._note)

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Restores the previous effect of SIGTERM; a second call does nothing."""
        if self._timer is not None:
            self._timer.cancel()
        if self._listens:
            self._listens = False
            if signal.getsignal(signal.SIGTERM) == self._note:  # else a later notice restores it
                signal.signal(signal.SIGTERM, self._handler_before())

    def _handler_before(self) -> Any:
        """Returns the handler to restore, skipping notices that were closed meanwhile."""
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
    _logger.error(
        "No step ended and was saved within %g s after SIGTERM: exiting without a new checkpoint. "
        "If it is the checkpoint that takes longer, raise preemption_grace_s",
        grace_s,
    )
    logging.shutdown()
    os._exit(PREEMPTED_EXIT_CODE)
