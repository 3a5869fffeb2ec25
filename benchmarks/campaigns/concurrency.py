"""Runs at once on one pipeline root and one run key, which share a directory of checkpoints.

A team of executions of one node is started at the same moment, as by a scheduler that fires twice,
or by a retry of a step that still runs. Then:

- each ends well, or with the error of this package that another run writes there;
- at least one publishes; those that wait for each other all do;
- every model that is published equals, bit by bit, that of a run alone;
- those that were refused publish the same when they are started again, and nothing of the runs is
  left below the root, nor in the temporary directory.
"""

from __future__ import annotations

import collections
import random
import sys
from typing import Any

import numpy as np

from benchmarks.campaigns._processes import HOUSE_ERROR, Violation, finish, require_silence
from benchmarks.campaigns._runs import (
    Node,
    kept_if_failed,
    require_equal,
    temporary_entries,
    under_way,
    weights,
)
from generic_trainer import Distribution

TEAM = 8
# Runs; a team has TEAM.
FULL_SIZE = 80
_WAIT_S = 120.0
_REFUSED = "Another run writes into"
# API and custom_config.
_KINDS: list[tuple[str, dict[str, Any]]] = [
    ("loop", {"wait_s": _WAIT_S}),
    ("fit", {}),
    ("trial", {}),
    ("trainer_fn", {}),
]


def run(dice: random.Random, size: int, examples: Any) -> str:
    """Starts teams until there have been `size` runs; returns the summary.

    Raises:
        Violation: see the module.
    """
    outcomes: collections.Counter[str] = collections.Counter()
    before = None
    for number in range(max(1, size // TEAM)):
        api, config = _KINDS[number % len(_KINDS)]
        team = min(TEAM, size)
        with kept_if_failed(api) as folder:
            alone = _node(folder / "alone", api, config, examples)
            reference = _run_again(alone, None)
            before = temporary_entries() if before is None else before
            node = _node(folder / "together", api, config, examples)
            outcomes += _together(node, team, reference, must_wait=bool(config))
            if left := temporary_entries() - before:
                raise Violation(f"{api}: left in the temporary directory: {sorted(left)[:20]}")
        print(f"{team} runs of {api}: {dict(outcomes)}", file=sys.stderr, flush=True)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    return f"{sum(outcomes.values())} runs, {TEAM} at once: {counts}"


def _node(folder: Any, api: str, config: dict[str, Any], examples: Any) -> Node:
    folder.mkdir()
    notes = folder / "notes"
    notes.touch()
    return Node(folder / "root", api, examples, Distribution(), notes, config)


def _together(
    node: Node, team: int, reference: list[np.ndarray], *, must_wait: bool
) -> collections.Counter[str]:
    executors = [node.start() for _ in range(team)]
    codes = [finish(executor, _WAIT_S * 2) for executor in executors]
    require_silence()
    refused = 0
    for number, code in enumerate(codes, 1):
        text = node.output(number).read_text(errors="replace")
        if code not in (0, HOUSE_ERROR) or (code and (must_wait or _REFUSED not in text)):
            raise Violation(f"{node.api}: run {number} of {codes}\n{text[-6000:]}")
        refused += code != 0
    if refused == team:
        raise Violation(f"{node.api}: all runs were refused")
    if len(node.published()) != team - refused:
        raise Violation(f"{node.api}: exit codes {codes}, published {node.published()}")
    for model in node.published():
        require_equal(weights(model), reference)
    for _ in range(min(refused, 2)):
        _run_again(node, reference)
    if left := under_way(node):
        raise Violation(f"{node.api}: left below the root: {dict(left)}")
    return collections.Counter({"published": team - refused, "refused": refused})


def _run_again(node: Node, reference: list[np.ndarray] | None) -> list[np.ndarray]:
    code = finish(node.start())
    require_silence()
    if code != 0:
        text = node.output(node.executions).read_text(errors="replace")
        raise Violation(f"{node.api}: the run alone failed\n{text[-6000:]}")
    found = weights(node.root / "Trainer" / "model" / str(node.executions) / "Format-Serving")
    if reference is not None:
        require_equal(found, reference)
    return found
