"""Searches: the trials of an experiment, how far each trains, and which of them go on.

A search calls a function that trains a trial for a stretch, and goes by the metric that this
returns. It has no other inputs, so an experiment that was killed repeats its search.

================  ===============================================================================
`single`,         all trials train to the end
`random`, `grid`
`async_halving`   trials start on a rung of short training; a trial among the best 1/`divisor` that
                  its rung has seen trains on, `divisor` times as long; the best of all trains to
                  the end
`sync_halving`    the same, of as many trials as its budget has room for
`adaptive…`       several halvings, with fewer or more rungs, by `mode`
================  ===============================================================================

Parts of a cluster may train side by side, each a share of the trials by itself. As many workers as
`resources.slots_per_trial` form a part, with a `TF_CONFIG` of its own. The shares follow from the
search alone, so parts need not talk while they train. At the end each part writes its results below
the checkpoints (`side-by-side/part-1-of-3.json`) for the one that exports.

Source: `master/pkg/searcher` of Determined 0.13; Li et al., "A System for Massively Parallel
Hyperparameter Tuning" (2018).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from generic_trainer._core.cluster import part_of_cluster
from generic_trainer._core.files import files_below, gfile, read_whole, write_whole
from generic_trainer.training import distributed
from generic_trainer.trials._config import ExperimentSettings, Length
from generic_trainer.trials._hyperparameters import Constant, grid, sample
from generic_trainer.trials._trial import TrialRun

# Trains a trial up to a length and validates it; returns its metric, where less is better: infinite
# for a trial that cannot go on.
Train = Callable[[TrialRun, Length], float]
# Pauses of the part that waits for the results of the others, and between signs of life that it
# logs: without any, the launcher takes the job for hanging.
_POLL_S, _LOG_S = 2.0, 60.0
# For each trial its number, the error that it failed with, and its progress.
Results = list[tuple[int, str | None, dict[str, Any]]]

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Bracket:
    """Trials that are halved together: so many trials, and the lengths of their rungs."""

    trials: int
    lengths: tuple[Length, ...]


class Search:
    """The search of an experiment.

    The first trial of every search is the one of a `single` search with the same seed. Values that
    were `tuned` before replace ranges and constants.

    Attributes:
        size: the number of trials.
    """

    def __init__(self, settings: ExperimentSettings, tuned: Mapping[str, Any]) -> None:
        fixed = {name: Constant(value) for name, value in tuned.items()}
        self._ranges = {**settings.hyperparameters, **fixed}
        self._settings, self._searcher = settings, settings.searcher
        self._divisor = self._searcher.divisor
        self._points = [*grid(self._ranges)] if self._searcher.name == "grid" else None
        self._brackets = self._make_brackets()
        self.size = sum(bracket.trials for bracket in self._brackets)

    def run(self, train: Train, part: int = 0, parts: int = 1) -> None:
        """Has the trials of one of several parts of the cluster trained."""
        numbers = itertools.count(part + 1, parts)
        for bracket in self._brackets:
            count = len(range(part, bracket.trials, parts))
            trials = map(self.trial, itertools.islice(numbers, count))
            _halve(bracket.lengths, self._divisor, trials, train)

    def trial(self, number: int) -> TrialRun:
        """Returns a trial; the first one is number 1."""
        settings, index = self._settings, number - 1
        seed = settings.reproducibility.experiment_seed + index
        hparams = self._points[index] if self._points else sample(self._ranges, seed)
        return TrialRun(number, settings.raw, hparams, seed, settings.resources.slots_per_trial)

    def _make_brackets(self) -> list[Bracket]:
        name, count = self._searcher.name, self._searcher.max_trials
        if name in ("single", "grid"):
            count = len(self._points) if self._points else 1
        rungs = self._rungs(count)
        if self._searcher.budget is not None:
            budget = self._searcher.budget.count / len(rungs)
            return [self._of_budget(budget, self._lengths(n)) for n in rungs]
        # With these weights the brackets of `adaptive_asha` train about equally long.
        is_weighted = name == "adaptive_asha"
        weights = [self._divisor ** (n - 1) / n if is_weighted else 1.0 for n in rungs]
        shares = [max(1, int(weight / sum(weights) * count)) for weight in weights]
        shares[0] += max(0, count - sum(shares))
        return [Bracket(s, self._lengths(n)) for s, n in zip(shares, rungs, strict=True)]

    def _rungs(self, count: int) -> list[int]:
        """Returns the number of rungs of each bracket of a search of so many trials."""
        searcher, name = self._searcher, self._searcher.name
        if not name.startswith("adaptive"):
            return [searcher.num_rungs if name.endswith("halving") else 1]
        most = searcher.max_rungs
        if name == "adaptive_asha":
            halved = max(1, min(searcher.max_length.count, count))
            most = min(most, int(math.log(halved) / math.log(self._divisor)) + 1)
        fewest = {"conservative": 1, "standard": (most - 1) // 2 + 1, "aggressive": most}
        rungs = searcher.bracket_rungs or range(fewest[searcher.mode], most + 1)
        return sorted(rungs, reverse=True)

    def _lengths(self, rungs: int) -> tuple[Length, ...]:
        """Returns the lengths of rungs, the last of which is the whole length of a trial."""
        whole = self._searcher.max_length
        counts = (int(whole.count / self._divisor**left) for left in reversed(range(rungs)))
        return tuple(
            dataclasses.replace(whole, count=min(max(1, count), whole.count)) for count in counts
        )

    def _of_budget(self, budget: float, lengths: tuple[Length, ...]) -> Bracket:
        """Returns the bracket of as many trials as train a budget together."""
        counts = itertools.pairwise([0, *(length.count for length in lengths)])
        of_a_trial = sum(
            (after - before) / self._divisor**rung for rung, (before, after) in enumerate(counts)
        )
        return Bracket(max(1, int(budget / of_a_trial)), lengths)


def _halve(
    lengths: tuple[Length, ...], divisor: float, trials: Iterator[TrialRun], train: Train
) -> None:
    """Asynchronous successive halving, of which one rung is training to the end.

    Where no trial is due to go on, the next one starts. At the end the best one trains to the end,
    however few there are. A trial with an infinite metric does not go on.
    """
    known: dict[int, TrialRun] = {}
    results: list[dict[int, float]] = [{} for _ in lengths]  # of each rung: trial → metric
    promoted: list[set[int]] = [set() for _ in lengths]

    def candidate(rung: int, share: float) -> int | None:
        """Returns the best trial of a rung's best share that has not gone on yet."""
        ranked = sorted(results[rung], key=results[rung].__getitem__)
        due = (n for n in ranked[: int(len(ranked) * share)] if n not in promoted[rung])
        return next((number for number in due if math.isfinite(results[rung][number])), None)

    below = range(len(lengths) - 1)
    while True:
        due = [(rung, candidate(rung, 1 / divisor)) for rung in reversed(below)]
        rung, number = next(((rung, found) for rung, found in due if found), (-1, None))
        if number is None:
            trial = next(trials, None)
            if trial is not None:
                number, known[trial.trial_id] = trial.trial_id, trial
            else:
                rung = next((each for each in below if not promoted[each]), -1)
                number = candidate(rung, 1) if rung >= 0 else None
        if number is None:
            return
        if rung >= 0:
            promoted[rung].add(number)
        results[rung + 1][number] = train(known[number], lengths[rung + 1])


@dataclasses.dataclass(frozen=True)
class ClusterPart:
    """The workers that train a trial together with this one.

    Attributes:
        number: of the part; 0 has worker 0, which exports in the end.
        count: the number of parts that train; a part with a higher number has nothing to do.
        ranks: of its workers, in the whole cluster.
    """

    number: int
    count: int
    ranks: Sequence[int]

    @classmethod
    def of_this_worker(cls, settings: ExperimentSettings, num_trials: int) -> ClusterPart:
        """Returns the part that this worker belongs to.

        There are `max_concurrent_trials` parts, if there are workers and trials for so many. If
        that gives one part, and by default, all workers train each trial together.
        """
        size, rank = distributed.size(), distributed.rank()
        slots = max(1, settings.resources.slots_per_trial)
        given = settings.searcher.max_concurrent_trials
        most = 1 if given is None else given or num_trials  # 0 means no limit
        count = min(most, num_trials, size // slots)
        if count < 2:
            if most > 1 and num_trials > 1:
                _logger.info(
                    "max_concurrent_trials: trials run one after another, because there are too "
                    "few workers; Distribution(launcher='local', num_workers=...) starts more"
                )
            return cls(0, 1, range(size))
        number = rank // slots
        return cls(number, count, range(number * slots, min(size, (number + 1) * slots)))

    def as_cluster(self) -> contextlib.AbstractContextManager[None]:
        """Makes the workers of this part the only ones that this process knows."""
        is_all = len(self.ranks) == distributed.size()
        return contextlib.nullcontext() if is_all else part_of_cluster(self.ranks)

    def written(self, checkpoint_dir: str) -> Results | None:
        """Returns the results that this part has written, maybe in a run that was killed later."""
        path = self._path(checkpoint_dir)
        return json.loads(read_whole(path)) if gfile().exists(path) else None

    def write(self, checkpoint_dir: str, results: Results) -> None:
        """Writes the results of this part, whose checkpoints must be closed."""
        path = self._path(checkpoint_dir)
        gfile().makedirs(os.path.dirname(path))
        write_whole(path, json.dumps(results))

    def results_of_others(self, checkpoint_dir: str, log_dir: str) -> Results:
        """Waits for the other parts, and returns their results.

        Args:
            checkpoint_dir: the directory with the checkpoints of all trials.
            log_dir: the directory with their event files, which grow as long as they train.
        """
        others = [ClusterPart(number, self.count, ()) for number in range(1, self.count)]
        size, next_look = 0, time.monotonic() + _LOG_S
        while any(other.written(checkpoint_dir) is None for other in others):
            time.sleep(_POLL_S)
            if time.monotonic() > next_look:
                before, size, next_look = size, _bytes_below(log_dir), next_look + _LOG_S
                if size != before:
                    _logger.info("Waiting for trials that other workers train")
        return [one for other in others for one in other.written(checkpoint_dir) or ()]

    def _path(self, checkpoint_dir: str) -> str:
        name = f"part-{self.number}-of-{self.count}.json"
        return os.path.join(checkpoint_dir, "side-by-side", name)


def _bytes_below(directory: str) -> int:
    paths = (os.path.join(directory, name) for name in files_below(directory))
    return sum(gfile().stat(path).length for path in paths)
