"""Memory, processors, disk and GPUs of this machine, control groups considered.

Sources: proc(5); https://docs.kernel.org/admin-guide/cgroup-v2.html, memory interface files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

MIB = 1 << 20
# TensorFlow's threads wake up now and then, and a main thread may sleep and look again, which takes
# it 0.02 % of a processor at two looks a second. Less than these shares, by all threads and by the
# main thread, is to do nothing; a step, a compilation or a look at a service takes more.
IDLE_SHARE, IDLE_MAIN_SHARE = 0.02, 0.002
_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
# Fields of /proc/PID/stat after the name, which may hold anything.
_PPID, _PGRP, _UTIME, _STIME, _RSS = 1, 2, 11, 12, 21
_OOM_COUNTERS = (
    _CGROUP / "memory.events",
    _CGROUP / "memory" / "memory.oom_control",
    _PROC / "vmstat",
)


def free_memory_bytes() -> int:
    """Returns what this process may still take without swapping, in bytes.

    The smallest of what the machine has available, what the control group still allows, and what is
    left of the process's address space (`ulimit -v`).
    """
    available = _bytes_of(_PROC / "meminfo", "MemAvailable")
    if available is None:  # not on Linux
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    left = _left_of_cgroup(), _left_of_address_space()
    return min([available, *(each for each in left if each is not None)])


def free_disk_bytes(directory: str) -> int:
    """Returns what may still be written into a directory, in bytes."""
    return shutil.disk_usage(directory).free


def available_cpus() -> list[int]:
    """Returns the numbers of the processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def visible_gpus() -> list[str]:
    """Returns the names that `CUDA_VISIBLE_DEVICES` has for the GPUs that this process may use."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name.strip() not in ("", "-1")]
    try:
        command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True).stdout.split()
    except OSError:
        return []


def gpu_usage() -> list[tuple[float, float]]:
    """Returns the share of time that each GPU computes, from 0 to 1, and the MiB that it holds.

    Of all of the machine's, as `nvidia-smi` tells it; none where there is no such program.
    """
    command = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used"]
    try:
        said = subprocess.run(
            [*command, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=10
        )
        lines = [line.split(",") for line in said.stdout.splitlines()]
        return [(float(share) / 100, float(mb)) for share, mb in lines]
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return []


def resident_memory_mb() -> float | None:
    """Returns the resident memory of this process in MiB; None where it cannot be read."""
    return _own_mb("VmRSS")


def peak_memory_mb() -> float | None:
    """Returns the most that was ever resident, in MiB; None where it cannot be read."""
    return _own_mb("VmHWM")


def limit_memory(limit_mb: float | None) -> None:
    """Makes allocations beyond a limit fail in this process.

    Args:
        limit_mb: MiB that may be allocated from here on; None for what is free now.
    """
    allowance = limit_mb * MIB if limit_mb is not None else free_memory_bytes()
    # RLIMIT_DATA counts the private writable memory that the process has already.
    limit = int(allowance + (_bytes_of(_PROC / "self" / "status", "VmData") or 0))
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def be_first_to_be_killed(score: int) -> None:
    """Makes the kernel choose this process rather than others when memory runs out.

    Args:
        score: from 0, as any other process, to 1000, always this one.
    """
    with contextlib.suppress(OSError):
        (_PROC / "self" / "oom_score_adj").write_text(str(score))


def oom_kills() -> int:
    """Returns how many processes the kernel has killed for want of memory, as far as it says."""
    total = 0
    for path in _OOM_COUNTERS:
        with contextlib.suppress(OSError):
            lines = path.read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return total


@dataclasses.dataclass(frozen=True)
class Usage:
    """The resources that the processes of a group use, and what they have started.

    Attributes:
        cpu_s: processor time of all of them so far, in seconds.
        main_thread_s: that of the first one's main thread, to the nanosecond.
        resident_mb: memory that they occupy now, in MiB.
        moved_bytes: what all of them have read and written so far, files and pipes, and network
            traffic as far as that is done by `read` and `write`, as TLS does it.
        main_thread_bytes: that of the first one's main thread; None where the kernel does not say.
    """

    cpu_s: float = 0.0
    main_thread_s: float = 0.0
    resident_mb: float = 0.0
    moved_bytes: int = 0
    main_thread_bytes: int | None = None


def group_usage(group: int) -> Usage | None:
    """Returns what a process group uses; None when that cannot be told, as on macOS."""
    if not _PROC.exists():
        return None
    stats = dict(_stats())
    ticks = pages = moved_bytes = 0
    for pid in _members(group, stats):
        fields = stats[pid]
        ticks += int(fields[_UTIME]) + int(fields[_STIME])
        pages += int(fields[_RSS])
        moved_bytes += _moved_bytes(_PROC / str(pid)) or 0
    return Usage(
        cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
        main_thread_s=_main_thread_s(group),
        resident_mb=pages * os.sysconf("SC_PAGE_SIZE") / MIB,
        moved_bytes=moved_bytes,
        main_thread_bytes=_moved_bytes(_PROC / str(group) / "task" / str(group)),
    )


def _members(group: int, stats: Mapping[int, list[str]]) -> set[int]:
    """Returns the processes of a group and all below them, some of which may have left it."""
    members: set[int] = set()
    found = {pid for pid, fields in stats.items() if int(fields[_PGRP]) == group}
    while found - members:
        members |= found
        found = {pid for pid, fields in stats.items() if int(fields[_PPID]) in members}
    return members


def children(parent: int) -> list[int]:
    """Returns the processes that a process has started or adopted; none where that is not told."""
    return [pid for pid, fields in _stats() if int(fields[_PPID]) == parent]


def processes_that_name(text: str) -> list[int]:
    """Returns the other processes that have a text in their command lines, as far as is told."""
    return [pid for pid in _processes() if text in command_line(pid) and pid != os.getpid()]


def command_line(pid: int) -> str:
    """Returns what a process was started as; empty when it is gone, or nobody may know."""
    with contextlib.suppress(OSError):
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
        return b" ".join(words).decode(errors="replace").strip()
    return ""


def _stats() -> Iterator[tuple[int, list[str]]]:
    for pid in _processes():
        with contextlib.suppress(OSError):  # it has ended
            yield pid, (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _processes() -> list[int]:
    names = os.listdir(_PROC) if _PROC.exists() else []
    return [int(name) for name in names if name.isdigit()]


def _main_thread_s(pid: int) -> float:
    """Returns the processor time of a process's main thread so far, in seconds; 0 if not told."""
    try:
        text = (_PROC / str(pid) / "task" / str(pid) / "schedstat").read_text()
    except OSError:  # it has ended, or the kernel keeps no such statistics
        return 0.0
    return int(text.split()[0]) / 1e9


def _moved_bytes(process: Path) -> int | None:
    try:
        words = (process / "io").read_text().split()
    except OSError:  # it has ended, is another user's, or the kernel does not count that
        return None
    counts = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    return counts["rchar:"] + counts["wchar:"]


def _left_of_address_space() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    taken = _bytes_of(_PROC / "self" / "status", "VmSize")
    if limit == resource.RLIM_INFINITY or taken is None:
        return None
    return max(0, limit - taken)


def _left_of_cgroup() -> int | None:
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            allowed = (_CGROUP / limit).read_text().strip()
            used = (_CGROUP / usage).read_text().strip()
        except OSError:
            continue
        return None if allowed == "max" else max(0, int(allowed) - int(used))
    return None


def _own_mb(key: str) -> float | None:
    value = _bytes_of(_PROC / "self" / "status", key)
    return None if value is None else value / MIB


def _bytes_of(path: Path, key: str) -> int | None:
    """Returns the value of a line such as "VmRSS:  12 kB", in bytes."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in path.read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    return None
