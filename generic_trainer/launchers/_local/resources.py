"""Shares of each worker: processors, GPUs, environment and streams, and the limits watched."""

import contextlib
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from generic_trainer._core import machine
from generic_trainer._core.cluster import TF_CONFIG, Task, make_tf_config
from generic_trainer._core.keras import same_keras
from generic_trainer._core.output import flush
from generic_trainer.errors import ConfigurationError
from generic_trainer.launchers._distribution import Distribution

_STANDARD = (1, 2)
_COPY_TIMEOUT_S = 5.0

_logger = logging.getLogger(__name__)

# Bytes a second that the members of a cluster exchange while they are idle. The main thread takes
# no part in that: any read or write of it is progress.
_IDLE_BYTES = 512
# The longest time between two samples.
_INTERVAL_S = 1.0
# The number of samples within `heartbeat_s`.
_LOOKS = 20


def common_environment(distribution: Distribution) -> dict[str, str]:
    """Returns the environment that all workers share."""
    return {
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        **os.environ,
        **same_keras(),
        "TF_GRPC_REUSE_PORT": "1",
        **distribution.env,
    }


def own_environment(
    distribution: Distribution, task: Task, addresses: Mapping[Task, str], gpus: Sequence[str]
) -> dict[str, str]:
    """Returns all environment variables of one worker.

    Args:
        distribution: the settings.
        task: the worker.
        addresses: see `make_tf_config`.
        gpus: the GPUs of this machine.

    Raises:
        ConfigurationError: GPUs are missing.
    """
    own = common_environment(distribution)
    if distribution.is_cluster:
        own[TF_CONFIG] = make_tf_config(task, addresses)
    own_gpus = _own_gpus(distribution, task, addresses, gpus)
    if own_gpus is not None:
        own["CUDA_VISIBLE_DEVICES"] = own_gpus
    return own


def own_processors(distribution: Distribution, number: int) -> list[int]:
    """Returns the processors of a worker; an empty list if it may use all.

    Args:
        distribution: the settings.
        number: the worker's place among all.
    """
    if distribution.cpus_per_worker is None or not hasattr(os, "sched_setaffinity"):
        return []
    per_worker = max(1, round(distribution.cpus_per_worker))
    available = machine.available_cpus()
    if per_worker * distribution.num_processes > len(available):
        if number == 0:
            _logger.warning(
                "cpus_per_worker=%g is ignored: %d processes share the %d processors there are",
                distribution.cpus_per_worker,
                distribution.num_processes,
                len(available),
            )
        return []
    return available[number * per_worker : (number + 1) * per_worker]


@contextlib.contextmanager
def own_streams(names: list[str]) -> Iterator[dict[str, tuple[int, int]]]:
    """Yields name → the descriptors for standard output and error of the worker of that name.

    With one worker they are those of this process. With several, each line starts with the
    worker's name. All output is shown on exit.
    """
    flush()
    if len(names) == 1:
        yield {names[0]: _STANDARD}
        return
    with contextlib.ExitStack() as stack:

        def copied(name: str, target: int) -> int:
            read_end, write_end = os.pipe()
            thread = threading.Thread(target=_copy, args=(read_end, target, name), daemon=True)
            thread.start()
            stack.callback(thread.join, _COPY_TIMEOUT_S)
            stack.callback(os.close, write_end)
            return write_end

        stdout, stderr = _STANDARD
        yield {name: (copied(name, stdout), copied(name, stderr)) for name in names}


def _own_gpus(
    distribution: Distribution, task: Task, addresses: Mapping[Task, str], gpus: Sequence[str]
) -> str | None:
    """Returns the names of a worker's GPUs, "-1" for none; None for all that there are."""
    # Parameter servers, and a chief that only sends orders, use none.
    trainers = [
        peer for peer in addresses if peer.type == "worker" or not distribution.parameter_servers
    ]
    per_worker = distribution.gpus_per_worker
    if per_worker is None:
        # NCCL refuses workers that share one; if there are too few, they have to.
        per_worker = len(gpus) // len(trainers) if len(trainers) > 1 else 0
        if not per_worker or "CUDA_VISIBLE_DEVICES" in distribution.env:
            return None
    if not per_worker or task not in trainers:
        return "-1"
    if per_worker * len(trainers) > len(gpus):
        raise ConfigurationError(
            f"gpus_per_worker={per_worker}: {len(trainers)} workers need "
            f"{per_worker * len(trainers)} GPUs, but this machine has {len(gpus)}. "
            "Use fewer workers, or launcher='ray' with a cluster that has more."
        )
    start = trainers.index(task) * int(per_worker)
    return ",".join(gpus[start : start + int(per_worker)])


def _copy(read_end: int, target: int, name: str) -> None:
    prefix = f"[{name}] ".encode()
    with open(read_end, "rb") as lines:
        for line in lines:
            text = prefix + line if line.endswith(b"\n") else prefix + line + b"\n"
            while text:
                text = text[os.write(target, text) :]


@dataclasses.dataclass
class _Seen:
    usage: machine.Usage
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
        usage_of: Callable[[int], machine.Usage | None] = machine.group_usage,
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
        self._clock = clock
        self._usage_of = usage_of
        self._seen = {task: _Seen(machine.Usage(), clock(), clock()) for task in workers}
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
            if usage is None:
                _logger.warning("heartbeat_s and memory_mb_per_worker need /proc: they are off")
                self._heartbeat_s = self._memory_mb = None
                return
            seen = self._seen[task]
            if _progressed(seen.usage, usage, now_s - seen.seen_s):
                seen.alive_s = now_s
            seen.usage = usage
            seen.seen_s = now_s

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


def _progressed(before: machine.Usage, now: machine.Usage, passed_s: float) -> bool:
    """Returns whether a worker has computed, read or written anything between two samples."""
    cpu_s = now.cpu_s - before.cpu_s
    moved_bytes = now.moved_bytes - before.moved_bytes
    # The time of processes that have ended is missing, hence not `>` alone.
    if min(cpu_s, moved_bytes) < 0 or cpu_s > machine.IDLE_SHARE * passed_s:
        return True
    main_thread_s = now.main_thread_s - before.main_thread_s
    if now.main_thread_bytes is None:  # so any time of the main thread may be progress
        return main_thread_s > 0
    return (
        main_thread_s > machine.IDLE_MAIN_SHARE * passed_s
        or now.main_thread_bytes != before.main_thread_bytes
        or moved_bytes > _IDLE_BYTES * passed_s
    )
