"""How much a worker may take, how long it may do nothing, and when all must be over."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping

from generic_trainer._core.machine import Usage, group_usage
from generic_trainer.launchers._distribution import Distribution
from generic_trainer.launchers._members import Member

__all__ = ["Deadline", "Limits"]

# TensorFlow's threads wake up now and then. A process that uses less than this share of one
# processor, and whose main thread uses nothing, does nothing.
_IDLE_SHARE = 0.02
# At most this long between two looks, and this often within `heartbeat_s`.
_INTERVAL_S, _LOOKS = 1.0, 20

_logger = logging.getLogger(__name__)


class Deadline:
    """The end of `timeout_s`, which counts over all attempts."""

    def __init__(
        self, timeout_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.timeout_s = timeout_s
        self._clock = clock
        self._start_s = clock()

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.timeout_s is not None and self._clock() - self._start_s > self.timeout_s


@dataclasses.dataclass
class _Seen:
    usage: Usage
    seen_s: float
    alive_s: float


class Limits:
    """Watches the workers of one attempt."""

    def __init__(
        self,
        distribution: Distribution,
        groups: Mapping[Member, int],
        *,
        clock: Callable[[], float] = time.monotonic,
        usage_of: Callable[[int], Usage | None] = group_usage,
    ) -> None:
        """Starts to watch.

        Args:
            distribution: has the limits.
            groups: process → its number, which is that of its process group too.
            clock: tells seconds.
            usage_of: process group → what it uses.
        """
        self._memory_mb = distribution.memory_mb_per_worker
        self._heartbeat_s = distribution.heartbeat_s
        self._clock, self._usage_of = clock, usage_of
        self._groups = dict(groups)
        self._seen = {member: _Seen(Usage(), clock(), clock()) for member in groups}
        interval_s = min(_INTERVAL_S, (self._heartbeat_s or _LOOKS) / _LOOKS)
        self._interval_s = 0.0 if self._memory_mb else interval_s
        self._next_s = clock()

    def look(self, running: Iterable[Member]) -> None:
        """Reads what the workers use, unless that was done a moment ago."""
        now_s = self._clock()
        if now_s < self._next_s or not (self._memory_mb or self._heartbeat_s):
            return
        self._next_s = now_s + self._interval_s
        for member in running:
            usage = self._usage_of(self._groups[member])
            if usage is not None:
                self._note(self._seen[member], usage, now_s)
            elif self._heartbeat_s or self._memory_mb:
                _logger.warning("heartbeat_s and memory_mb_per_worker need /proc: they are off")
                self._heartbeat_s = self._memory_mb = None

    def over_memory(self) -> tuple[Member, float] | None:
        """Returns a worker that takes more memory than allowed, and how much in MiB."""
        for member, seen in self._seen.items():
            if self._memory_mb and seen.usage.resident_mb > self._memory_mb:
                return member, seen.usage.resident_mb
        return None

    def all_idle(self, running: Iterable[Member]) -> bool:
        """Whether no worker has done anything for `heartbeat_s`.

        One that waits for another which works is not stuck; servers wait for orders all the time.
        """
        train = [member for member in running if not member.is_server]
        since_s = max((self._seen[member].alive_s for member in train), default=self._clock())
        return self._heartbeat_s is not None and self._clock() - since_s > self._heartbeat_s

    def _note(self, seen: _Seen, usage: Usage, now_s: float) -> None:
        cpu_s = usage.cpu_s - seen.usage.cpu_s
        works = usage.main_thread_s > seen.usage.main_thread_s
        # Processes that have ended take their time with them, hence not `>` alone.
        if works or cpu_s < 0 or cpu_s > _IDLE_SHARE * (now_s - seen.seen_s):
            seen.alive_s = now_s
        seen.usage, seen.seen_s = usage, now_s
