"""Limits of workers: the memory that each may take, and the time that all may do nothing."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping

from generic_trainer._core.cluster import Task
from generic_trainer._core.machine import Usage, group_usage
from generic_trainer.launchers._distribution import Distribution

# TensorFlow's threads wake up now and then. A process that uses less than this share of one
# processor, and whose main thread uses nothing, does nothing.
_IDLE_SHARE = 0.02
# At most this long between two looks, and this often within `heartbeat_s`.
_INTERVAL_S, _LOOKS = 1.0, 20

_logger = logging.getLogger(__name__)


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
        groups: Mapping[Task, int],
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
        self._seen = {task: _Seen(Usage(), clock(), clock()) for task in groups}
        interval_s = min(_INTERVAL_S, (self._heartbeat_s or _LOOKS) / _LOOKS)
        self._interval_s = 0.0 if self._memory_mb else interval_s
        self._next_s = clock()

    def look(self, running: Iterable[Task]) -> None:
        """Reads what the workers use, unless that was done a moment ago."""
        now_s = self._clock()
        if now_s < self._next_s or not (self._memory_mb or self._heartbeat_s):
            return
        self._next_s = now_s + self._interval_s
        for task in running:
            usage = self._usage_of(self._groups[task])
            if usage is not None:
                self._note(self._seen[task], usage, now_s)
            elif self._heartbeat_s or self._memory_mb:
                _logger.warning("heartbeat_s and memory_mb_per_worker need /proc: they are off")
                self._heartbeat_s = self._memory_mb = None

    def over_memory(self) -> tuple[Task, float] | None:
        """Returns a worker that takes more memory than allowed, and how much in MiB."""
        for task, seen in self._seen.items():
            if self._memory_mb and seen.usage.resident_mb > self._memory_mb:
                return task, seen.usage.resident_mb
        return None

    def all_idle(self, running: Iterable[Task]) -> bool:
        """Whether no worker has done anything for `heartbeat_s`.

        One that waits for another which works is not stuck; servers wait for orders all the time.
        """
        train = [task for task in running if not task.is_server]
        since_s = max((self._seen[task].alive_s for task in train), default=self._clock())
        return self._heartbeat_s is not None and self._clock() - since_s > self._heartbeat_s

    def _note(self, seen: _Seen, usage: Usage, now_s: float) -> None:
        cpu_s = usage.cpu_s - seen.usage.cpu_s
        works = usage.main_thread_s > seen.usage.main_thread_s
        # Processes that have ended take their time with them, hence not `>` alone.
        if works or cpu_s < 0 or cpu_s > _IDLE_SHARE * (now_s - seen.seen_s):
            seen.alive_s = now_s
        seen.usage, seen.seen_s = usage, now_s
