"""Memory, processors, disk, GPUs and processes of this machine, within its control group.

`psutil` reads most of it. Control groups, and counters that only Linux has, are read here.

Sources: proc(5); https://docs.kernel.org/admin-guide/cgroup-v2.html, memory interface files.
"""

import contextlib
import dataclasses
import importlib.util
import os
import resource
import subprocess
from pathlib import Path

import psutil

MIB = 1 << 20
# Idle threads of TensorFlow wake up now and then, and a main thread that polls twice a second takes
# 0.02 % of a processor. A process below these shares, of all threads and of the main thread, is
# idle; a step, a compilation or a request to a service takes more.
IDLE_SHARE = 0.02
IDLE_MAIN_SHARE = 0.002
# With many GPUs it takes seconds.
_NVIDIA_SMI_S = 60.0
_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
_OOM_COUNTERS = (_CGROUP / "memory.events", _CGROUP / "memory/memory.oom_control", _PROC / "vmstat")


def free_memory_bytes() -> int:
    """Returns how much memory this process may still take without swapping, in bytes.

    This is the least of the memory available on the machine, the rest that the control group
    allows, and the rest of the process's address space (`ulimit -v`).
    """
    left = psutil.virtual_memory().available, _left_of_cgroup(), _left_of_address_space()
    return min(num_bytes for num_bytes in left if num_bytes is not None)


def available_cpus() -> list[int]:
    """Returns the numbers of the processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def visible_gpus() -> list[str]:
    """Returns the GPUs that this process may use, by their names in `CUDA_VISIBLE_DEVICES`."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name.strip() not in ("", "-1")]
    return [name for (name,) in _nvidia_smi("uuid")]


def find_cuda_of_wheels() -> None:
    """Tells XLA where the wheels of `tensorflow[and-cuda]` have CUDA's `libdevice`.

    XLA looks below /usr/local/cuda and the working directory, and compiles nothing without it.
    A process that has set XLA_FLAGS keeps them.
    """
    with contextlib.suppress(ModuleNotFoundError):  # no package `nvidia`
        wheel = importlib.util.find_spec("nvidia.cuda_nvcc")
        for folder in (wheel and wheel.submodule_search_locations) or ():
            os.environ.setdefault("XLA_FLAGS", f"--xla_gpu_cuda_data_dir={folder}")


def gpu_usage() -> list[tuple[float, float]]:
    """Returns the load of each GPU of the machine, from 0 to 1, and its used memory in MiB.

    The list is empty without `nvidia-smi`.
    """
    with contextlib.suppress(ValueError):  # it does not know the load of some
        busy = _nvidia_smi("utilization.gpu,memory.used")
        return [(float(share) / 100, float(mb)) for share, mb in busy]
    return []


def _nvidia_smi(query: str) -> list[list[str]]:
    """Returns the answers for each GPU of the machine; an empty list without `nvidia-smi`."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        printed = subprocess.check_output(command, text=True, timeout=_NVIDIA_SMI_S)
        return [line.split(", ") for line in printed.splitlines()]
    return []


def resident_memory_mb() -> float | None:
    """Returns the resident memory of this process in MiB; None without `/proc`."""
    return _own_mb("VmRSS")


def peak_memory_mb() -> float | None:
    """Returns the largest resident memory of this process so far, in MiB; None without `/proc`."""
    return _own_mb("VmHWM")


def limit_memory(limit_mb: float | None) -> None:
    """Makes allocations beyond a limit fail in this process.

    Args:
        limit_mb: MiB that may be allocated from here on; None for all that is free now.
    """
    allowance = limit_mb * MIB if limit_mb is not None else free_memory_bytes()
    # RLIMIT_DATA counts the private writable memory that the process has already.
    limit = int(allowance + (_own_mb("VmData") or 0) * MIB)
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
    """Returns how many processes the kernel has killed for lack of memory, if it counts."""
    total = 0
    for path in _OOM_COUNTERS:
        with contextlib.suppress(OSError):
            lines = path.read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return total


@dataclasses.dataclass(frozen=True)
class Usage:
    """Resources that the processes of a group and their descendants use.

    Attributes:
        cpu_s: processor time of all of them so far, in seconds.
        main_thread_s: that of the first one's main thread, to the nanosecond.
        resident_mb: memory that they occupy now, in MiB.
        moved_bytes: bytes that all of them have read and written so far, of files, pipes, and
            sockets as far as that is done by `read` and `write`, as TLS does it.
        main_thread_bytes: those of the first one's main thread; None if the kernel does not count.
    """

    cpu_s: float = 0.0
    main_thread_s: float = 0.0
    resident_mb: float = 0.0
    moved_bytes: int = 0
    main_thread_bytes: int | None = None


def group_usage(group: int) -> Usage | None:
    """Returns the usage of a process group; None on systems without `/proc`, such as macOS."""
    if not _PROC.exists():
        return None
    cpu_s = 0.0
    resident_bytes = 0
    moved_bytes = 0
    for process in _members(group):
        with contextlib.suppress(psutil.Error), process.oneshot():  # it has exited
            times = process.cpu_times()
            cpu_s += times.user + times.system
            resident_bytes += process.memory_info().rss
            moved_bytes += _moved_bytes(_PROC / str(process.pid)) or 0
    return Usage(
        cpu_s=cpu_s,
        main_thread_s=_main_thread_s(group),
        resident_mb=resident_bytes / MIB,
        moved_bytes=moved_bytes,
        main_thread_bytes=_moved_bytes(_PROC / str(group) / "task" / str(group)),
    )


def _members(group: int) -> list[psutil.Process]:
    """Returns the processes of a group and all their descendants, also if they have left it."""
    processes = {process.pid: process for process in psutil.process_iter(["ppid"])}
    members: set[int] = set()
    added = {pid for pid in processes if _is_in_group(pid, group)}
    while added - members:
        members |= added
        added = {pid for pid, process in processes.items() if process.info["ppid"] in members}
    return [processes[pid] for pid in members]


def _is_in_group(pid: int, group: int) -> bool:
    with contextlib.suppress(OSError):  # it has exited
        return os.getpgid(pid) == group
    return False


def _main_thread_s(pid: int) -> float:
    """Returns the processor time of a process's main thread so far, in seconds; 0 if unknown."""
    try:
        text = (_PROC / str(pid) / "task" / str(pid) / "schedstat").read_text()
    except OSError:  # it has exited, or the kernel does not keep such statistics
        return 0.0
    return int(text.split()[0]) / 1e9


def _moved_bytes(process: Path) -> int | None:
    try:
        words = (process / "io").read_text().split()
    except OSError:  # it has exited, is another user's, or the kernel does not count
        return None
    counts = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    return counts["rchar:"] + counts["wchar:"]


def _left_of_address_space() -> int | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    return max(0, limit - psutil.Process().memory_info().vms)


def _left_of_cgroup() -> int | None:
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError):
            allowed = (_CGROUP / limit).read_text().strip()
            used = (_CGROUP / usage).read_text().strip()
            return None if allowed == "max" else max(0, int(allowed) - int(used))
    return None


def _own_mb(key: str) -> float | None:
    """Returns a number of /proc/self/status, which a sandbox can read too, in MiB."""
    with contextlib.suppress(OSError):
        for line in (_PROC / "self" / "status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) / 1024
    return None
