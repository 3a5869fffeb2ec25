"""Kills at random moments, over launchers, trainer APIs, processes and signals.

Each round trains one small model under the executor, as a pipeline would, and strikes two to six
times on the way: the executor, a worker, what workers are forked from, what checks the model, what
copies output, whatever else runs, or all of them, with SIGKILL, SIGTERM or SIGSTOP, while it
reads, trains and checkpoints, exports, validates or publishes. An executor that has ended is
started anew, as an orchestrator does. After each end of it:

- where consumers look for a model there is a whole one or none;
- it was killed, or has raised an error of this package because something else was;
- the run that follows has lost at most one interval between checkpoints;
- nothing is left running;
- the model that is published in the end equals, bit by bit, that of a run without interruption.

After all rounds one more run is let alone; then the temporary directory holds no more than before
the first blow, and no round's pipeline root holds anything that was under way.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.campaigns._cluster import kubernetes
from benchmarks.campaigns._modules import INTERVAL_STEPS
from benchmarks.campaigns._processes import (
    HOUSE_ERROR,
    TIMEOUT_S,
    Violation,
    command_of,
    descendants,
    finish,
    has_ended,
    require_silence,
)
from benchmarks.campaigns._runs import (
    Node,
    kept_if_failed,
    last_output,
    require_equal,
    temporary_entries,
    under_way,
    weights,
)
from generic_trainer.launchers import Distribution, TFJobOptions

# How many kills a summary of the documentation is about.
FULL_SIZE = 1000
# How long a stopped worker is waited for before it counts as hanging, and others are stopped.
HEARTBEAT_S = 10.0
PAUSE_S = 1.5
LAUNCHERS: dict[str, dict[str, Any]] = {
    "in_process": {},
    "local": {"launcher": "local"},
    "two workers": {"launcher": "local", "num_workers": 2},
    "ray": {"launcher": "ray"},
    "tfjob": {"launcher": "tfjob"},
}
# API and launcher. Ray is one that is started for the run, Kubernetes the stand-in of the tests.
# Most rounds are of the kind that takes least time.
MIX = [
    *(("loop", "local"), ("loop", "in_process"), ("fit", "local"), ("trial", "local")),
    *(("loop", "ray"), ("loop", "tfjob"), ("fit", "in_process"), ("trainer_fn", "local")),
    *(("trial", "in_process"), ("fit", "two workers"), ("trainer_fn", "in_process")),
    *(("fit", "ray"), ("fit", "tfjob"), ("loop", "local"), ("trial", "ray"), ("trial", "tfjob")),
    *(("trainer_fn", "ray"), ("trainer_fn", "tfjob"), ("loop", "local"), ("loop", "in_process")),
]
# Moment → the longest wait in seconds before the blow falls.
DELAYS_S = {
    "reading": 0.3,
    "training": 1.0,
    "exporting": 0.4,
    "validating": 1.5,
    "publishing": 0.02,
}
PHASES = {
    api: [phase for phase in DELAYS_S if phase not in missing]
    for api, missing in {
        "loop": (),
        "fit": (),
        "trial": ("reading", "exporting"),
        "trainer_fn": ("reading", "exporting"),
    }.items()
}
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
Kind = tuple[str, str]


def run(dice: random.Random, size: int, examples: Any, launcher: str | None = None) -> str:
    """Strikes until it has done so `size` times; returns the summary.

    Args:
        dice: makes the chance.
        size: how often to strike.
        examples: the Examples artifact.
        launcher: the only one to train on, a key of LAUNCHERS.

    Raises:
        Violation: see the module.
    """
    started_s = time.perf_counter()
    mix = [kind for kind in MIX if launcher in (None, kind[1])]
    references: dict[str, list[np.ndarray]] = {}
    before: set[str] = set()
    total: collections.Counter[tuple[str, str]] = collections.Counter()
    left: collections.Counter[str] = collections.Counter()
    rounds = 0
    while sum(total.values()) < size:
        kind = mix[rounds % len(mix)]
        rounds += 1
        # With two workers each computes a part of what one does alone: to the last bit, that is
        # another sum.
        name = f"{kind[0]} {kind[1] == 'two workers'}"
        if name not in references:
            references[name], *_ = _round(dice, kind, examples, 0, None)
            before |= temporary_entries()
        blows = min(dice.randint(2, 6), size - sum(total.values()))
        try:
            _, done, remains = _round(dice, kind, examples, blows, references[name])
        except Violation as violation:
            raise Violation(f"round {rounds} ({', '.join(kind)}): {violation}") from violation
        total += done
        left += remains
        print(f"round {rounds} ({', '.join(kind)}): {sum(total.values())} kills", file=sys.stderr)
    _round(dice, mix[0], examples, 0, next(iter(references.values())))
    left += collections.Counter(_kind_of(name) for name in temporary_entries() - before)
    for (phase, target), count in sorted(
        total.items(), key=lambda it: (list(DELAYS_S).index(it[0][0]), it)
    ):
        print(f"{phase:12}{target:28}{count:5}")
    minutes = (time.perf_counter() - started_s) / 60
    if left:
        raise Violation(f"left behind after {sum(total.values())} kills: {dict(left)}")
    return f"{sum(total.values())} kills in {rounds} rounds, {minutes:.1f} min, 0 left behind"


def _kind_of(name: str) -> str:
    """What a temporary file is, without what is random in its name."""
    top = name.split(os.sep)[0]
    return top.rstrip("abcdefghijklmnopqrstuvwxyz0123456789_") or top


def _round(
    dice: random.Random,
    kind: Kind,
    examples: Any,
    blows: int,
    reference: list[np.ndarray] | None,
) -> tuple[list[np.ndarray], collections.Counter[tuple[str, str]], collections.Counter[str]]:
    """Runs until the model is published, and strikes on the way.

    Returns:
        The weights, what was struck, and what is left below the pipeline root.
    """
    api, launcher = kind
    done: collections.Counter[tuple[str, str]] = collections.Counter()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(kept_if_failed(api))
        notes = folder / "notes"
        notes.touch()
        cluster = stack.enter_context(kubernetes(folder)) if launcher == "tfjob" else None
        distribution = _distribution(launcher, folder)
        node = Node(folder / "root", api, examples, distribution, notes)
        executor = node.start()
        struck = False  # in this execution
        while executor:
            blow = None
            if sum(done.values()) < blows:
                phase = dice.choice(PHASES[api])
                seen = len(notes.read_text()) if done else 0
                if _wait_for_phase(node, executor, phase, seen):
                    time.sleep(dice.uniform(0, DELAYS_S[phase]))
                    blow = _strike(dice, executor, notes, cluster)
                if blow:
                    done[phase, blow] += 1
                    struck = True
            if blow is None or blow.startswith(("executor SIGK", "executor SIGT", "all")):
                try:
                    code = finish(executor)
                    require_silence(cluster)
                    _check_end(node, code, struck, reference)
                except Violation as violation:
                    raise Violation(f"{violation}\n{last_output(node)}") from violation
                executor = 0 if code == 0 else node.start()
                struck = False
        _check_lost_steps(notes)
        result = weights(node.published()[-1])
        return result, done, under_way(node)


def _distribution(launcher: str, folder: Path) -> Distribution:
    if launcher == "in_process":
        return Distribution()
    options = LAUNCHERS[launcher]
    if launcher == "tfjob":
        # Pods get nothing of this environment.
        env = {"CAMPAIGN_NOTES": str(folder / "notes"), "TMPDIR": tempfile.gettempdir()}
        tfjob = TFJobOptions("example/trainer:1", volumes={"campaign": str(folder)})
        options = {**options, "tfjob": tfjob, "env": env}
    return Distribution(
        **options,
        max_failures=10,
        preemption_grace_s=15.0,
        timeout_s=TIMEOUT_S / 2,
        heartbeat_s=HEARTBEAT_S,
    )


def _check_end(node: Node, code: int, struck: bool, reference: list[np.ndarray] | None) -> None:
    """Looks at what an execution has left; `struck` tells whether it had a reason to fail."""
    for model in node.published():
        found = weights(model)
        if reference is not None:
            require_equal(found, reference)
        if model.parent.name == str(node.executions):
            node.note("published")
    if code == 0 and not (
        node.published() and node.published()[-1].parent.name == str(node.executions)
    ):
        raise Violation("the run ended well and has published nothing")
    if code != 0 and not struck:
        raise Violation("the run failed, and nothing had been killed")
    if code not in (0, HOUSE_ERROR, -signal.SIGKILL, -signal.SIGTERM):
        raise Violation(f"the executor ended with {code}")


def _wait_for_phase(node: Node, executor: int, phase: str, seen: int) -> bool:
    """Waits until the run comes to a phase; returns whether it did before it ended."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if any(line.startswith(phase) for line in node.notes.read_text()[seen:].splitlines()):
            return True
        if has_ended(executor):
            return False
        time.sleep(0.002)
    raise Violation(
        f"the run did not come to {phase!r} within {TIMEOUT_S:g} s\n{last_output(node)}"
    )


def _strike(dice: random.Random, executor: int, notes: Path, cluster: int | None) -> str | None:
    """Sends a signal to something; returns what and which, None if all has ended."""
    targets = _targets(executor, notes, cluster)
    if not targets:
        return None
    name, number = dice.choice(sorted(targets)), dice.choice(SIGNALS)
    pids = targets[name] if name == "all" else [dice.choice(targets[name])]
    # A worker that is stopped for good is one that hangs; nothing watches over the others.
    for_good = name in ("chief", "worker")
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    if number != signal.SIGSTOP:
        return f"{name} {number.name}"
    if for_good:
        return f"{name} SIGSTOP"
    time.sleep(PAUSE_S)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return f"pause of {name}"


def _targets(executor: int, notes: Path, cluster: int | None) -> dict[str, list[int]]:
    """Returns name → processes of what runs now."""
    below = descendants()
    below.pop(cluster, None)
    if executor not in below:
        return {}
    targets = {"executor": [executor], "all": list(below)}
    pids = [int(number) for number in _numbers(notes, ("reading", "training", "exporting"))]
    chief = pids[-1] if pids else 0
    if chief in below and chief != executor:
        server = below[chief]
        targets["fork server"] = [server]
        targets["chief"] = [chief]
        targets["worker"] = [pid for pid in below if below[pid] == server and pid != chief]
    for pid in below.keys() - {executor, *targets.get("fork server", ())}:
        if pid not in (*targets.get("chief", ()), *targets.get("worker", ())):
            name = "pod" if below[pid] == cluster else command_of(pid)
            targets.setdefault("checker" if name.startswith("python") else name, []).append(pid)
    return {name: pids for name, pids in targets.items() if name and pids}


def _numbers(notes: Path, words: tuple[str, ...]) -> list[str]:
    lines = (line.split() for line in notes.read_text().splitlines())
    return [line[1] for line in lines if line and line[0] in words]


def _check_lost_steps(notes: Path) -> None:
    """Compares how far each attempt came with where the next one started."""
    done = 0
    for line in notes.read_text().splitlines():
        word, _, number = line.partition(" ")
        if word == "published":  # nothing is left to resume, and nothing is lost
            done = 0
        if word == "step":
            done = max(done, int(number))
        # A checkpoint may be on its way to the disk while the next ones are trained.
        if word == "resumed" and int(number) < done - 2 * INTERVAL_STEPS:
            raise Violation(f"{done} steps were done, and the next attempt began at {number}")
