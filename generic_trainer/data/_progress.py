"""One line now and then while a long first pass reads."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

__all__ = ["Progress"]

_logger = logging.getLogger(__name__)

_INTERVAL_S = 10.0


class Progress:
    """Logs how far reading is, every ten seconds."""

    def __init__(self, expected: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts the clock.

        Args:
            expected: about how many examples will be read.
            clock: what tells the time, in seconds.
        """
        self._expected = max(1, expected)
        self._clock = clock
        self._start = self._last = clock()

    def update(self, read: int) -> None:
        """Notes that so many examples have been read in all."""
        now = self._clock()
        if now - self._last < _INTERVAL_S:
            return
        self._last = now
        rate = read / (now - self._start)
        left = max(0.0, (self._expected - read) / rate)
        _logger.info(
            "Reading examples: %s of about %s, %s per second, about %.0f s to go",
            f"{read:,}", f"{self._expected:,}", f"{rate:,.0f}", left,
        )  # fmt: skip
