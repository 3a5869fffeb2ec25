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

Where parts of a cluster train side by side, each searches a share of the trials by itself.

Source: `master/pkg/searcher` of Determined 0.13; Li et al., "A System for Massively Parallel
Hyperparameter Tuning" (2018).
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from generic_trainer.trials._config import ExperimentSettings, Length
from generic_trainer.trials._hyperparameters import Constant, grid, sample
from generic_trainer.trials._trial import TrialRun

# Trains a trial up to a length and validates it; returns its metric, where less is better: infinite
# for a trial that cannot go on.
Train = Callable[[TrialRun, Length], float]


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
