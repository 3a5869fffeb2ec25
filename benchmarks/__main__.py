"""All benchmarks by one command: one table, appended to the history in the repository.

    python -m benchmarks [--size small] [--only reader training ...] [--csv chicago_taxi/data.csv]

Every benchmark runs in a process of its own, one after the other, or with `--cores 2` on so many
cores of its own, side by side with as many others as the machine has room for. A figure is a median
of several runs next to a reference that took turns with it. Each is appended to
`benchmarks/history.jsonl` with machine and versions, and what has become worse since the last run
on such a machine, by more than the runs differ among themselves, is named. `--no-history` leaves
the file alone. `--write` measures nothing: it renders the newest figures into docs/benchmarks.md.
`--stale` lists the benchmarks whose figures there are older than a tenth of the code that they
measure; a release has none.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from rich.console import Console
from rich.table import Table

from benchmarks import _history
from benchmarks._figures import Figure
from benchmarks._history import Entry

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_BEGIN, _END = "<!-- figures: python -m benchmarks --write -->", "<!-- end of figures -->"
# Name, up to a "/" that of the module → arguments at either size. "small" is for a look at whether
# something broke, in minutes.
BENCHMARKS: dict[str, dict[str, list[str]]] = {
    "reader": {
        "small": ["--rows", "50000", "--batch", "256", "--kinds", "half", "--repeats", "2"],
        "full": ["--batch", "256", "1024"],
    },
    "training": {
        "small": ["--rows", "50000", "--runs", "2", "--epochs", "2"],
        "full": ["--rows", "1000000", "--runs", "3"],
    },
    "steps/penguin": {
        "small": ["--examples", "penguin", "--runs", "2"],
        "full": ["--examples", "penguin"],
    },
    **{
        f"steps/{example}": {
            "small": ["--examples", example, "--runs", "1"],
            "full": ["--examples", example],
        }
        for example in ("taxi", "mnist")
    },
    "steps/imdb": {  # a recurrent network: 200 steps of it are most of what would be measured
        "small": ["--examples", "imdb", "--steps", "5", "--runs", "1"],
        "full": ["--examples", "imdb", "--steps", "20", "--runs", "3"],
    },
    "overhead": {"small": ["--runs", "2", "--train-seconds", "5"], "full": []},
    "trials": {"small": ["--runs", "2", "--steps", "300"], "full": []},
    "searches": {"small": ["--runs", "5"], "full": []},
    "quality": {"small": ["--seeds", "2", "--steps", "100"], "full": []},
    "validation": {"small": ["--sizes", "1"], "full": []},
    "first_step": {"small": ["--runs", "1"], "full": []},
    "checkpoint": {"small": ["--runs", "1", "--units", "64"], "full": []},
    "recovery": {"small": ["--runs", "1", "--launchers", "local"], "full": []},
    "distribution": {"small": ["--runs", "1", "--launchers", "local"], "full": []},
    "data_parallel": {"small": ["--runs", "1"], "full": []},
}
# Name, up to a "/" → the rooms that its figures depend on.
_STEP = ("_run", "executors", "launchers", "user_code", "validation")
ROOMS = {
    "reader": ("data",),
    "training": ("data", "training"),
    "steps": _STEP,
    "overhead": _STEP,
    "trials": ("trials",),
    "searches": ("trials/_algorithms.py", "trials/_search.py"),
    "quality": ("data",),
    "validation": ("validation",),
    "first_step": ("training",),
    "checkpoint": ("training/resume",),
    "recovery": ("launchers", "training/resume"),
    "distribution": ("launchers", "training/distributed"),
    "data_parallel": ("training/distributed",),
}
_STALE = 0.1
_TAKE_CSV = ("training", "quality")
_NEED_CSV = ("quality",)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what was asked for.

    Returns:
        The exit status: 1 where a benchmark has failed.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=_summary())
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS))
    parser.add_argument(
        "--csv", type=Path, help="the Chicago taxi trips; without, rows are made up"
    )
    parser.add_argument("--cores", type=int, help="of each benchmark; several run at once")
    parser.add_argument("--no-history", action="store_true", help="append nothing to the history")
    parser.add_argument("--write", action="store_true", help="render the history, measure nothing")
    parser.add_argument("--stale", action="store_true", help="list old figures, measure nothing")
    options = parser.parse_args(arguments)
    if options.write:
        write_page()
        return 0
    console = Console()
    if options.stale:
        for name, entry in newest().items():
            rooms = ROOMS[name.partition("/")[0]]
            share = _history.changed_share(entry, [f"generic_trainer/{room}" for room in rooms])
            if share > _STALE:
                changed = f"{share:.0%} of the lines of {', '.join(rooms)} have changed"
                console.print(f"{name}, of {entry.when[:10]}: {changed}", soft_wrap=True)
        return 0
    earlier = _history.entries()
    done, failed = [], []

    def run(name: str) -> None:
        csv = ["--csv", str(options.csv)] if options.csv and name in _TAKE_CSV else []
        cores = groups.get()
        entry = _run(console, name, options.size, csv, cores)
        groups.put(cores)
        if entry is None:
            failed.append(name)
            return
        done.append(entry)
        if not options.no_history:
            _history.append(entry)

    groups = _groups_of_cores(options.cores)
    names = [*options.only]
    if options.csv is None:
        for name in {*names} & {*_NEED_CSV}:
            console.print(f"{name} is left out: it needs --csv", style="yellow")
            names.remove(name)
    with ThreadPoolExecutor(groups.qsize()) as pool:
        list(pool.map(run, names))
    console.print(_table(done))
    for entry in done:
        for figure, before in _history.fallen(entry, _history.last_like(entry, earlier)):
            console.print(
                f"worse than before: {entry.benchmark}, {figure.name}: {figure.ratio:.2f} of "
                f"{figure.beside}, was {before.ratio:.2f}",
                style="yellow",
            )
    if failed:
        console.print(f"failed: {', '.join(failed)}", style="red")
    return 1 if failed else 0


def _summary() -> str:
    return (__doc__ or "").partition("\n")[0]


def _groups_of_cores(size: int | None) -> Queue[list[int]]:
    """Returns the cores of this machine in groups of a size, at least one; None: all in one."""
    cores = sorted(os.sched_getaffinity(0))
    size = min(size or len(cores), len(cores))
    groups: Queue[list[int]] = Queue()
    for start in range(0, len(cores) - size + 1, size):
        groups.put(cores[start : start + size])
    return groups


def _run(
    console: Console, name: str, size: str, more: Sequence[str], cores: list[int]
) -> Entry | None:
    """Runs a benchmark on some cores and shows what it prints; returns None where it fails."""
    load, started = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "figures.json")
        arguments = [*BENCHMARKS[name][size], *more, "--json", str(path)]
        module = f"benchmarks.bench_{name.partition('/')[0]}"
        command = ["taskset", "--cpu-list", ",".join(map(str, cores))]
        command += [sys.executable, "-m", module, *arguments]
        log = Path(folder, "log")
        is_alone = len(cores) == len(os.sched_getaffinity(0))
        if is_alone:
            console.rule(name)
        with open(log, "wb") as errors:
            ended = subprocess.run(
                command, stdout=None if is_alone else subprocess.PIPE, stderr=errors, check=False
            )
        status = ended.returncode
        if not is_alone:  # its lines would mingle with those of the others
            console.rule(name)
            console.print(ended.stdout.decode(errors="replace"), markup=False, end="")
        if status or not path.exists():
            console.print(log.read_text(errors="replace")[-2000:], markup=False)
            console.print(f"{name} ended with exit status {status}", style="red")
            return None
        figures = tuple(Figure(**figure) for figure in json.loads(path.read_text()))
    console.print(f"{time.monotonic() - started:.0f} s", style="dim")
    machine = {**_history.machine(), "cores": len(cores)}
    facts = (_history.now(), round(load, 2), machine, _history.versions())
    return Entry(name, size, *facts, figures, _history.commit())


def _table(done: Iterable[Entry]) -> Table:
    table = Table("benchmark", "figure", "value", "beside", "reference", "ratio", "of the runs")
    for entry in done:
        for figure in entry.figures:
            table.add_row(entry.benchmark, *cells(figure))
    return table


def cells(figure: Figure) -> tuple[str, ...]:
    """Returns a figure as the cells of a table: name, value, what is beside it, its value, ratio
    and the lowest and highest ratio of a pair of runs."""
    return (
        figure.name,
        f"{_short(figure.value)} {figure.unit}",
        figure.beside,
        f"{_short(figure.reference)} {figure.unit}",
        f"{figure.ratio:.2f}",
        f"{figure.low:.2f} to {figure.high:.2f}",
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def write_page() -> None:
    """Renders the newest figures into the page of the documents."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    PAGE.write_text(f"{before}{_BEGIN}\n{rendered()}{_END}{after}", encoding="utf-8")


def newest() -> dict[str, Entry]:
    """Returns the newest entry of each benchmark, a full one where there is any."""
    found: dict[str, Entry] = {}
    for entry in _history.entries():
        known = found.get(entry.benchmark)
        if known is None or (entry.size, known.size) != ("small", "full"):
            found[entry.benchmark] = entry
    return {name: found[name] for name in BENCHMARKS if name in found}


def rendered() -> str:
    """Returns the newest figures of each benchmark as Markdown."""
    lines = []
    for name, entry in newest().items():
        gpus = "".join(f", {gpu}" for gpu in entry.machine["gpus"])
        lines += [
            f"\n### {name}\n",
            f"{entry.when[:10]}, {entry.machine['cores']} cores of {entry.machine['processor']}"
            f"{gpus}, TensorFlow {entry.versions.get('tensorflow', 'none')}, size {entry.size}, "
            f"load {entry.load:.1f} when it began.\n",
            "| figure | value | beside | reference | ratio | of the runs |",
            "|---|---|---|---|---|---|",
            *(f"| {' | '.join(cells(figure))} |" for figure in entry.figures),
        ]
    return "\n".join(lines) + "\n\n" if lines else "\nNone yet.\n\n"


if __name__ == "__main__":
    sys.exit(main())
