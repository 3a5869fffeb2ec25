"""The history of the benchmarks: a file in the repository with one line for each run.

A line has when, on which machine, with which versions and at which size a benchmark ran, and its
figures; see `_figures.Figure`.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks._figures import Figure
from generic_trainer._core.machine import visible_gpus

__all__ = [
    "HISTORY",
    "Entry",
    "append",
    "changed_share",
    "commit",
    "entries",
    "fallen",
    "last_like",
    "machine",
    "versions",
]

ROOT = Path(__file__).parents[1]
HISTORY = Path(__file__).with_name("history.jsonl")
_PACKAGES = ("generic-trainer", "tfx", "tensorflow", "keras", "tf-keras", "ray")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One run of one benchmark.

    Attributes:
        benchmark: its name, such as "reader".
        size: "small" or "full".
        when: date and time, UTC, ISO 8601.
        load: of the machine when it began: processes that ran or waited, mean over a minute.
        machine: what `machine` returned.
        versions: what `versions` returned.
        figures: what was measured.
        commit: of the code that ran; empty in early entries.
    """

    benchmark: str
    size: str
    when: str
    load: float
    machine: dict[str, Any]
    versions: dict[str, str]
    figures: tuple[Figure, ...]
    commit: str = ""


def entries(path: Path = HISTORY) -> list[Entry]:
    """Returns all that was appended, the oldest first; nothing without a file.

    Raises:
        ValueError: a line is no entry.
    """
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            fields = json.loads(line)
            figures = tuple(Figure(**figure) for figure in fields.pop("figures"))
            found.append(Entry(**fields, figures=figures))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"{path}, line {number} is no entry of the history: {error}"
            ) from error
    return found


def append(entry: Entry, path: Path = HISTORY) -> None:
    """Appends one line."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(dataclasses.asdict(entry)) + "\n")


def last_like(entry: Entry, among: Sequence[Entry]) -> Entry | None:
    """Returns the newest run of the same benchmark, at the same size, on such a machine."""
    alike = [
        each
        for each in among
        if (each.benchmark, each.size) == (entry.benchmark, entry.size)
        and each.machine == entry.machine
    ]
    return alike[-1] if alike else None


def fallen(entry: Entry, before: Entry | None) -> Iterator[tuple[Figure, Figure]]:
    """Yields the figures whose ratio became worse by more than its spread, and what they were.

    The spread is what the pairs of runs of either entry differ by among themselves.
    """
    then = {} if before is None else {(each.name, each.beside): each for each in before.figures}
    for figure in entry.figures:
        earlier = then.get((figure.name, figure.beside))
        if earlier is None:
            continue
        worse = figure.ratio - earlier.ratio
        if not figure.less_is_better:
            worse = -worse
        if worse > max(figure.high - figure.low, earlier.high - earlier.low):
            yield figure, earlier


def changed_share(entry: Entry, paths: Sequence[str], repository: Path = ROOT) -> float:
    """Returns the share of the lines of files or folders that are not those which the entry ran.

    Of an entry without a commit they are those of the last commit before it.

    Args:
        entry: of the history.
        paths: within the repository.
        repository: with the code of today as its work tree.
    """
    before = entry.commit or _git(repository, "rev-list", "-1", f"--before={entry.when}", "HEAD")
    changed, lines = 0, 0
    for line in _git(repository, "diff", "--numstat", before, "--", *paths).splitlines():
        added, deleted, _ = line.split("\t", 2)
        changed += 0 if added == "-" else max(int(added), int(deleted))  # "-": of a binary file
    for name in _git(repository, "ls-files", "--", *paths).splitlines():
        lines += (repository / name).read_bytes().count(b"\n")
    return changed / max(1, lines)


def commit() -> str:
    """Returns the commit of the code of today; empty where there is no git."""
    try:
        return _git(ROOT, "rev-parse", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(repository: Path, *arguments: str) -> str:
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def now() -> str:
    """Returns date and time, UTC, as `Entry.when`."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def machine() -> dict[str, Any]:
    """Returns what figures depend on: processor, cores, memory in GiB, and GPUs by name."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / (1 << 30)),
        "gpus": _gpus(),
    }


def _gpus() -> list[str]:
    if not visible_gpus():
        return []
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):  # there is no such program, or no GPU
        return []
    return listed.stdout.splitlines()


def versions() -> dict[str, str]:
    """Returns package → version of what is installed of those that figures depend on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
