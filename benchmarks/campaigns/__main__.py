"""The campaigns as one command: faults of every kind, until there have been enough.

    python -m benchmarks.campaigns NAME[=SIZE] ... [--seed 0] [--first 0] [--launcher LAUNCHER]

| campaign | what it does | full size |
|---|---|---|
| `kills` | kills what belongs to a run, at random moments | 1,000 kills |
| `disk` | disks that are full, read-only, gone, or fail | 243 cases |
| `concurrency` | runs at once on one root and one run key | 80 runs |
| `growth` | fits and validations in one process | 600 steps |
| `object_store` | runs on S3, killed and started again | 20 runs |

Each prints a line with its size when nothing has gone wrong. Exits with 1 when something has, and
leaves the files of that run where the output says. Linux only. Runs are forked from this process,
which has imported everything; their temporary directory is one of their own. Several at once, each
with a seed, and of the cases of `disk` each with some (`--first 60`), make a large campaign short.
"""

from __future__ import annotations

import argparse
import atexit
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.campaigns import _preload

CAMPAIGNS = ("kills", "disk", "concurrency", "growth", "object_store")


def main() -> int:
    """Runs the campaigns that are named and prints a summary of each."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.campaigns", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("campaigns", nargs="+", metavar="NAME[=SIZE]", help=", ".join(CAMPAIGNS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case of disk")
    parser.add_argument("--launcher", help="the only one for kills, such as ray")
    options = parser.parse_args()
    if unknown := {each.partition("=")[0] for each in options.campaigns} - set(CAMPAIGNS):
        parser.error(f"expected some of {', '.join(CAMPAIGNS)}, found {', '.join(sorted(unknown))}")
    folder = Path(os.environ.get("CAMPAIGN_DIR") or tempfile.mkdtemp(prefix="campaigns-"))
    if any(each.partition("=")[0] == "disk" for each in options.campaigns):
        _preload.failing_disk(folder)
    temporary = folder / "tmp"
    temporary.mkdir()
    os.environ.update(CAMPAIGN_DIR=str(folder), TMPDIR=str(temporary))
    os.environ["GENERIC_TRAINER_CACHE_DIR"] = str(folder / "cache")
    tempfile.tempdir = None
    from benchmarks._artifacts import write_examples
    from benchmarks.campaigns import _processes, _runs

    _processes.adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    atexit.register(_processes.kill_all)
    _runs.preload()
    # The same for all runs: how examples are written differs from time to time.
    examples = write_examples(folder / "examples")
    status = 0
    for name, _, size in (each.partition("=") for each in options.campaigns):
        campaign = importlib.import_module(f"benchmarks.campaigns.{name}")
        dice = random.Random(options.seed)
        parts: dict[str, dict[str, Any]] = {
            "disk": {"first": options.first},
            "kills": {"launcher": options.launcher},
        }
        try:
            summary = campaign.run(
                dice, int(size or campaign.FULL_SIZE), examples, **parts.get(name, {})
            )
            print(f"{name}: {summary}, no violation", flush=True)
        except _processes.Violation as violation:
            print(f"{name}: {violation}", flush=True)
            status = 1
            _processes.kill_all()
    if status == 0:
        shutil.rmtree(folder)
    return status


if __name__ == "__main__":
    sys.exit(main())
