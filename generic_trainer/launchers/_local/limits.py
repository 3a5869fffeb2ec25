"""Limits of workers: the memory of each, and the time that all may be idle."""

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping

from generic_trainer._core.cluster import Task
from generic_trainer._core.machine import IDLE_MAIN_SHARE, IDLE_SHARE, Usage, group_usage
from generic_trainer.launchers._distribution import Distribution

# Bytes a second that the members of a cluster exchange while they are idle. The main thread takes
# no part in that: any read or write of it is progress.
_IDLE_BYTES = 512
# The longest time between two samples, and the number of samples within `heartbeat_s`.
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
        workers: Iterable[Task],
        *,
        clock: Callable[[], float] = time.monotonic,
        usage_of: Callable[[int], Usage | None] = group_usage,
    ) -> None:
        """Starts to watch.

        Args:
            distribution: the limits.
            workers: all of the attempt.
            clock: returns seconds.
            usage_of: process group → its usage.
        """
        self._memory_mb = distribution.memory_mb_per_worker
        self._heartbeat_s = distribution.heartbeat_s
        self._clock, self._usage_of = clock, usage_of
        self._seen = {task: _Seen(Usage(), clock(), clock()) for task in workers}
        interval_s = min(_INTERVAL_S, (self._heartbeat_s or _LOOKS) / _LOOKS)
        self._interval_s = 0.0 if self._memory_mb else interval_s
        self._next_s = clock()

    def look(self, running: Mapping[Task, int]) -> None:
        """Samples the usage of the workers that run, unless the last sample is recent."""
        now_s = self._clock()
        if now_s < self._next_s or not (self._memory_mb or self._heartbeat_s):
            return
        self._next_s = now_s + self._interval_s
        for task, group in running.items():
            usage = self._usage_of(group)
            if usage is not None:
                seen = self._seen[task]
                if _progressed(seen.usage, usage, now_s - seen.seen_s):
                    seen.alive_s = now_s
                seen.usage, seen.seen_s = usage, now_s
            elif self._heartbeat_s or self._memory_mb:
                _logger.warning("heartbeat_s and memory_mb_per_worker need /proc: they are off")
                self._heartbeat_s = self._memory_mb = None

    def over_memory(self) -> tuple[Task, float] | None:
        """Returns a worker that uses more memory than allowed, with the MiB."""
        for task, seen in self._seen.items():
            if self._memory_mb and seen.usage.resident_mb > self._memory_mb:
                return task, seen.usage.resident_mb
        return None

    def all_idle(self, running: Iterable[Task]) -> bool:
        """Returns whether no worker has made progress for `heartbeat_s`.

        A worker that waits for another, working one is not stuck; servers wait for orders anyway.
        """
        train = [task for task in running if not task.is_server]
        since_s = max((self._seen[task].alive_s for task in train), default=self._clock())
        return self._heartbeat_s is not None and self._clock() - since_s > self._heartbeat_s


def _progressed(before: Usage, now: Usage, passed_s: float) -> bool:
    """Returns whether a worker has computed, read or written anything between two samples."""
    cpu_s = now.cpu_s - before.cpu_s
    moved_bytes = now.moved_bytes - before.moved_bytes
    # The time of processes that have ended is missing, hence not `>` alone.
    if min(cpu_s, moved_bytes) < 0 or cpu_s > IDLE_SHARE * passed_s:
        return True
    main_thread_s = now.main_thread_s - before.main_thread_s
    if now.main_thread_bytes is None:  # so any time of the main thread may be progress
        return main_thread_s > 0
    return (
        main_thread_s > IDLE_MAIN_SHARE * passed_s
        or now.main_thread_bytes != before.main_thread_bytes
        or moved_bytes > _IDLE_BYTES * passed_s
    )
