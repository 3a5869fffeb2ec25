"""Disks that fail: full at every size, read-only, gone in the middle, with errors at any operation.

Each case takes one small run under the executor through one fault at one place: the pipeline root,
the directory of the checkpoints, or the temporary directory. Each has a disk of its own there, a
`tmpfs` in a private mount namespace, which needs root. EIO comes from a library that is preloaded
(`_eio.c`), which needs a C compiler; cases that cannot be had are skipped, and counted. Then:

- the run ends well with a whole model, or with an error of this package that says what was wrong;
- where consumers look for a model there is a whole one or none;
- when the fault has been mended, the next run goes on from the newest checkpoint that was whole
  before, and publishes the weights of a run without faults, bit by bit.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.campaigns._preload import LIBRARY
from benchmarks.campaigns._processes import (
    HOUSE_ERROR,
    RAW_ERROR,
    Violation,
    finish,
    fork,
    has_ended,
    require_silence,
)
from benchmarks.campaigns._runs import Node, kept_if_failed, last_output, require_equal, weights
from generic_trainer import Distribution

PLACES = ("root", "checkpoints", "temporary")
SIZES = 40
FULL_SIZE = len(PLACES) * (SIZES + 20 + 20 + 1)
# More operations than a process of such a run has below one of the places, or nearly so.
MOST_OPERATIONS = 200
ROOM_BYTES = 1 << 30
_SKIPPED = 77
_CLONE_NEWNS = 0x00020000
# Fault → what an error must say about it. Of a directory that is gone there are many words.
SAYINGS = {
    "full": ("No space left on device",),
    "read-only": ("Read-only file system",),
    "EIO": ("Input/output error",),
    "gone": (),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One fault.

    Attributes:
        fault: one of SAYINGS.
        place: one of PLACES.
        amount: how far the run comes before, from 0 to 1 of what it needs.
        api: what the module file is written for.
        launcher: where it trains.
    """

    fault: str
    place: str
    amount: float
    api: str
    launcher: str

    def __str__(self) -> str:
        return f"{self.place} {self.fault} at {self.amount:.3f}, {self.api}, {self.launcher}"


@dataclasses.dataclass
class Reference:
    """A run without faults: how long it takes, its weights, and the bytes that each place needs."""

    seconds: float
    weights: list[np.ndarray]
    needed: dict[str, int]


def run(dice: random.Random, size: int, examples: Any, first: int = 0) -> str:
    """Goes through `size` of the faults, from the one of number `first` on; returns the summary.

    Raises:
        Violation: see the module.
    """
    references: dict[tuple[str, str], Reference] = {}
    outcomes: collections.Counter[str] = collections.Counter()
    violations = []
    for number, case in enumerate(_cases(dice)[first : first + size], first):
        key = (case.api, case.launcher)
        try:
            with kept_if_failed("disk") as folder:
                if key not in references:
                    reference = _reference(folder, case, examples)
                    if reference is None:
                        return f"0 of {size} cases: mounting a disk needs root"
                    references[key] = reference
                outcome = _in_child(folder, case, examples, references[key])
        except Violation as violation:
            outcome = "violated"
            violations.append(str(violation))
        outcomes[outcome] += 1
        print(f"{number}: {case}: {outcome}", file=sys.stderr, flush=True)
    if violations:
        raise Violation("\n\n".join(violations))
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    return f"{size} cases: {counts}"


def _cases(dice: random.Random) -> list[Case]:
    kinds = [("loop", "in_process"), ("fit", "in_process"), ("loop", "local")]
    amounts = {
        "full": [(step + dice.random()) / SIZES for step in range(SIZES)],
        "EIO": [(step + dice.random()) / 20 for step in range(20)],
        "gone": [(step + dice.random()) / 20 for step in range(20)],
        "read-only": [0.0],
    }
    cases = [
        Case(fault, place, amount, *dice.choice(kinds))
        for fault, values in amounts.items()
        for place in PLACES
        for amount in values
    ]
    dice.shuffle(cases)
    return cases


def _reference(folder: Path, case: Case, examples: Any) -> Reference | None:
    """Returns what a run without faults does and needs; None where no disk can be mounted."""
    result = folder / "reference.npy"

    def measure() -> int:
        if not _own_mounts():
            return _SKIPPED
        node, places = _node(folder / "reference", case, examples)
        for place in places.values():
            _mount(place, ROOM_BYTES)
        started_s = time.perf_counter()
        executor = node.start()
        needed = dict.fromkeys(PLACES, 0)
        while not has_ended(executor):
            for name, place in places.items():
                stat = os.statvfs(place)
                used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
                needed[name] = max(needed[name], used)
            time.sleep(0.002)
        if finish(executor) != 0:
            raise Violation(f"the run without faults failed\n{last_output(node)}")
        # The checkpoints are below the root.
        needed["root"] += needed["checkpoints"]
        reference = Reference(
            time.perf_counter() - started_s, weights(node.published()[-1]), needed
        )
        np.save(result, np.array([dataclasses.asdict(reference)], object), allow_pickle=True)
        return 0

    if _outcome(measure, folder) == _SKIPPED:
        return None
    return Reference(**np.load(result, allow_pickle=True)[0])


def _in_child(folder: Path, case: Case, examples: Any, reference: Reference) -> str:
    """Goes through one case in a process with mounts of its own; returns how it ended."""
    if case.fault == "EIO" and LIBRARY not in os.environ.get("LD_PRELOAD", ""):
        return "skipped"

    def go() -> int:
        _own_mounts()
        node, places = _node(folder, case, examples)
        return _through(node, places[case.place], case, reference)

    code = _outcome(go, folder)
    return {0: "ended well", HOUSE_ERROR: "failed clearly"}[code]


def _outcome(function: Any, folder: Path) -> int:
    output = folder / "case-output"
    code = finish(fork(function, output), timeout_s=400.0)
    require_silence()
    if code == RAW_ERROR:
        raise Violation(output.read_text(errors="replace")[-8000:])
    return code


def _node(folder: Path, case: Case, examples: Any) -> tuple[Node, dict[str, Path]]:
    folder.mkdir(exist_ok=True)
    root = folder / "root"
    places = {
        "root": root,
        "checkpoints": root / "Trainer" / ".checkpoints",
        "temporary": Path(tempfile.gettempdir()),
    }
    notes = folder / "notes"
    notes.touch()
    local = {"launcher": "local", "num_workers": 1, "max_failures": 1, "timeout_s": 120.0}
    distribution = Distribution(**local) if case.launcher == "local" else Distribution()
    return Node(root, case.api, examples, distribution, notes), places


def _through(node: Node, place: Path, case: Case, reference: Reference) -> int:
    """Runs with the fault, then without it; returns how the first run ended."""
    amount = case.amount
    full_bytes = max(4096, int(amount * reference.needed[case.place]))
    _mount(place, full_bytes if case.fault == "full" else ROOM_BYTES)
    for name in ("model", "model_run"):  # as an orchestrator does before it starts the executor
        (node.root / "Trainer" / name / "1").mkdir(parents=True, exist_ok=True)
    with _fault(case, place, reference):
        executor = node.start()
        code = finish(executor)
        require_silence()
    where = f"{case}: "
    if code not in (0, HOUSE_ERROR):
        raise Violation(f"{where}the executor ended with {code}\n{last_output(node)}")
    text = last_output(node)
    sayings = SAYINGS[case.fault]
    if code and sayings and not any(saying in text for saying in sayings):
        raise Violation(f"{where}the error does not say {sayings}\n{text}")
    if code == 0 and case.fault != "gone" and not node.published():
        raise Violation(f"{where}the run ended well and has published nothing\n{text}")
    for model in node.published():
        require_equal(weights(model), reference.weights)
    saved = [] if code == 0 else node.checkpoints()
    _mend(case, place)
    noted = len(node.notes.read_text())
    executor = node.start()
    if finish(executor) != 0:
        raise Violation(f"{where}the run without the fault failed\n{last_output(node)}")
    require_silence()
    require_equal(weights(node.published()[-1]), reference.weights)
    words = [line.split() for line in node.notes.read_text()[noted:].splitlines()]
    resumed = [int(line[1]) for line in words if line[0] == "resumed"]
    # What was trained to its end and could not be published is, without training anew.
    if saved and words and case.api == "loop" and resumed[:1] != saved[-1:]:
        raise Violation(f"{where}checkpoints of {saved}, resumed from {resumed}")
    return code


@contextlib.contextmanager
def _fault(case: Case, place: Path, reference: Reference) -> Iterator[None]:
    """Brings the fault about while what is inside runs."""
    if case.fault == "read-only":
        _command("mount", "-o", "remount,ro", str(place))
    elif case.fault == "EIO":
        first = 1 + int(case.amount**2 * MOST_OPERATIONS)
        last = first if int(case.amount * 40) % 2 else 10**9  # once, or from then on
        os.environ.update(CAMPAIGN_EIO_FIRST=str(first), CAMPAIGN_EIO_LAST=str(last))
        os.environ["CAMPAIGN_EIO_BELOW"] = f"{place}/"
    timer = threading.Timer(case.amount * reference.seconds, _empty, [place])
    if case.fault == "gone":
        timer.start()
    yield
    timer.cancel()
    os.environ.pop("CAMPAIGN_EIO_BELOW", None)


def _mend(case: Case, place: Path) -> None:
    if case.fault == "full":
        _command("mount", "-o", f"remount,size={ROOM_BYTES}", str(place))
    elif case.fault == "read-only":
        _command("mount", "-o", "remount,rw", str(place))


def _empty(place: Path) -> None:
    for path in place.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _own_mounts() -> bool:
    """Gives this process mounts of its own; returns whether it may."""
    if ctypes.CDLL(None).unshare(_CLONE_NEWNS):
        return False
    _command("mount", "--make-rprivate", "/")
    return True


def _mount(place: Path, size_bytes: int) -> None:
    place.mkdir(parents=True, exist_ok=True)
    _command("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(place))


def _command(*arguments: str) -> None:
    subprocess.run(arguments, check=True)
