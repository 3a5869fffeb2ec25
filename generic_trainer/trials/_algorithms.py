"""Search algorithms: which trial of an experiment trains next, and how far.

An algorithm is asked again and again. It goes by the history of its trials alone, so an experiment
that was killed repeats its search::

    history                                  proposes
    (empty)                                  1 batch of a new trial, which becomes trial 1
    trial 1: loss 0.5 after 1 batch          1 batch of a new trial, which becomes trial 2
    ... trial 2: loss 0.3 after 1 batch      4 batches of trial 2, the better one
    ... trial 2: loss 0.2 after 4 batches    None: the search has ended

To add one:

1. Write a class, and a function that makes objects of it. The parameters of the function are the
   fields of `Searcher` in `_config` that the configuration may have with this name; `num_points` is
   the number of grid points.
2. Register the function in `ALGORITHMS`, and add a row to `docs/trial-configuration.md`.

This one trains a trial to the end if, at a quarter of its length, it is not worse than the median
of all trials so far::

    @dataclasses.dataclass(frozen=True)
    class MedianStopping(Algorithm):
        whole: Length

        def propose(self, history: Sequence[Measurement]) -> Proposal | None:
            early = self.whole.divided(4)
            metrics = [result.metric for result in history if result.length == early]
            is_early = history and history[-1].length != self.whole
            if is_early and metrics[-1] <= statistics.median(metrics) < math.inf:
                return Proposal(self.whole, history[-1].trial)
            return Proposal(early) if len(metrics) < self.trials else None

    def median_stopping(*, max_length: Length, max_trials: int) -> list[Algorithm]:
        return [MedianStopping(max_trials, max_length)]

Source: `master/pkg/searcher` of Determined 0.13; Li et al., "A System for Massively Parallel
Hyperparameter Tuning" (2018).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from generic_trainer.errors import ConfigurationError


@dataclasses.dataclass(frozen=True)
class Length:
    """A number of batches, records or epochs."""

    count: int
    unit: str = "batches"

    def to_batches(self, global_batch_size: int, records_per_epoch: int) -> int:
        """Returns the number of whole batches, 1 for what is less."""
        if self.unit == "batches":
            return self.count
        if self.unit == "records":
            return max(min(1, self.count), self.count // global_batch_size)
        if records_per_epoch <= 0:
            raise ConfigurationError(
                f"{{'epochs': {self.count}}} needs records_per_epoch, the number of training "
                "records, at the top level of the experiment configuration"
            )
        return Length(self.count * records_per_epoch, "records").to_batches(global_batch_size, 0)

    def divided(self, divisor: float) -> Length:
        """Returns a part of this length, at least 1 of its unit."""
        count = max(1, int(self.count / divisor))
        return dataclasses.replace(self, count=min(count, self.count))


class Measurement(NamedTuple):
    """How good a trial was when it had trained up to a length.

    Attributes:
        trial: its number.
        length: from the start of the trial.
        metric: less is better; infinite for a trial that cannot go on.
    """

    trial: int
    length: Length
    metric: float


class Proposal(NamedTuple):
    """What trains next.

    Attributes:
        length: up to which the trial trains, from its start.
        trial: the number of a trial in the history; None starts a new one.
    """

    length: Length
    trial: int | None = None


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """Base class of search algorithms.

    Parts of a cluster that train side by side each have an algorithm, with a share of the trials.

    Attributes:
        trials: how many trials it starts.
    """

    trials: int

    def propose(self, history: Sequence[Measurement]) -> Proposal | None:
        """Returns what trains next; None if the search has ended.

        Args:
            history: of the trials that this object has started, the last measurement last.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Halving(Algorithm):
    """Asynchronous successive halving, of which one rung is training to the end.

    1. A trial among the best 1/`divisor` that its rung has seen goes on to the next rung.
    2. If no trial is due to go on, the next one starts.
    3. At the end the best one trains to the end, however few there are.
    4. A trial with an infinite metric does not go on.

    Attributes:
        lengths: of the rungs; the last one is the whole length of a trial.
        divisor: one of so many trials goes on.
    """

    lengths: tuple[Length, ...]
    divisor: float = 4.0

    def propose(self, history: Sequence[Measurement]) -> Proposal | None:
        """Returns what trains next; see `Algorithm`."""
        rungs = self._metrics_of_rungs(history)
        below_last = range(len(rungs) - 1)
        for rung in reversed(below_last):
            if proposal := self._go_on(rungs, rung, self.divisor):
                return proposal
        if len(rungs[0]) < self.trials:
            return Proposal(self.lengths[0])
        for rung in below_last:
            if not rungs[rung + 1]:
                return self._go_on(rungs, rung, divisor=1)
        return None

    def _go_on(
        self, rungs: Sequence[Mapping[int, float]], rung: int, divisor: float
    ) -> Proposal | None:
        """Returns the next rung of the best 1/`divisor` of a rung that is not there yet."""
        metrics = rungs[rung]
        ranked = sorted(metrics, key=metrics.__getitem__)
        for trial in ranked[: int(len(ranked) / divisor)]:
            if trial not in rungs[rung + 1] and math.isfinite(metrics[trial]):
                return Proposal(self.lengths[rung + 1], trial)
        return None

    def _metrics_of_rungs(self, history: Sequence[Measurement]) -> list[dict[int, float]]:
        """Returns trial → metric of each rung, in the order in which the trials reached it."""
        rungs: list[dict[int, float]] = [{} for _ in self.lengths]
        reached: Counter[int] = Counter()
        for trial, _, metric in history:  # rungs of short trials may have the same length
            rungs[reached[trial]][trial] = metric
            reached[trial] += 1
        return rungs


def single(*, max_length: Length) -> list[Algorithm]:
    """One trial, trained to the end."""
    return [Halving(1, (max_length,))]


def random(*, max_length: Length, max_trials: int) -> list[Algorithm]:
    """All trials are trained to the end."""
    return [Halving(max_trials, (max_length,))]


def grid(*, max_length: Length, num_points: int) -> list[Algorithm]:
    """A trial for each grid point, trained to the end."""
    return [Halving(num_points, (max_length,))]


def adaptive(
    *,
    max_length: Length,
    budget: Length,
    mode: str,
    max_rungs: int,
    bracket_rungs: Sequence[int],
    divisor: float,
) -> list[Algorithm]:
    """Several halvings that train about equally long, together a budget."""
    counts = _rungs_of_brackets(mode, max_rungs, bracket_rungs)
    share = budget.count / len(counts)
    return [_of_budget(share, _rungs(max_length, rungs, divisor), divisor) for rungs in counts]


def adaptive_simple(
    *,
    max_length: Length,
    max_trials: int,
    mode: str,
    max_rungs: int,
    bracket_rungs: Sequence[int],
    divisor: float,
) -> list[Algorithm]:
    """Several halvings, of about as many trials each."""
    counts = _rungs_of_brackets(mode, max_rungs, bracket_rungs)
    return _brackets(max_length, max_trials, counts, [1.0] * len(counts), divisor)


def adaptive_asha(
    *,
    max_length: Length,
    max_trials: int,
    mode: str,
    max_rungs: int,
    bracket_rungs: Sequence[int],
    divisor: float,
) -> list[Algorithm]:
    """Several halvings that train about equally long."""
    halved = max(1, min(max_length.count, max_trials))
    most = min(max_rungs, int(math.log(halved) / math.log(divisor)) + 1)
    counts = _rungs_of_brackets(mode, most, bracket_rungs)
    weights = [divisor ** (rungs - 1) / rungs for rungs in counts]
    return _brackets(max_length, max_trials, counts, weights, divisor)


def sync_halving(
    *, max_length: Length, num_rungs: int, budget: Length, divisor: float
) -> list[Algorithm]:
    """A halving of as many trials as its budget has room for."""
    return [_of_budget(budget.count, _rungs(max_length, num_rungs, divisor), divisor)]


def async_halving(
    *, max_length: Length, num_rungs: int, max_trials: int, divisor: float
) -> list[Algorithm]:
    """A halving of so many trials."""
    return [Halving(max_trials, _rungs(max_length, num_rungs, divisor), divisor)]


# Name of a searcher → what makes its algorithms, which run one after another.
ALGORITHMS: dict[str, Callable[..., list[Algorithm]]] = {
    "single": single,
    "random": random,
    "grid": grid,
    "adaptive": adaptive,
    "adaptive_simple": adaptive_simple,
    "adaptive_asha": adaptive_asha,
    "sync_halving": sync_halving,
    "async_halving": async_halving,
}


def _rungs_of_brackets(mode: str, most: int, given: Sequence[int]) -> list[int]:
    """Returns the number of rungs of each bracket, as given or at most so many."""
    fewest = {"conservative": 1, "standard": (most - 1) // 2 + 1, "aggressive": most}
    return sorted(given or range(fewest[mode], most + 1), reverse=True)


def _rungs(whole: Length, count: int, divisor: float) -> tuple[Length, ...]:
    """Returns the lengths of rungs, the last of which is the whole length of a trial."""
    return tuple(whole.divided(divisor**left) for left in reversed(range(count)))


def _of_budget(budget: float, lengths: tuple[Length, ...], divisor: float) -> Algorithm:
    """Returns the halving of as many trials as train a budget together."""
    counts = itertools.pairwise([0, *(length.count for length in lengths)])
    of_a_trial = sum(
        (after - before) / divisor**rung for rung, (before, after) in enumerate(counts)
    )
    return Halving(max(1, int(budget / of_a_trial)), lengths, divisor)


def _brackets(
    whole: Length, trials: int, counts: Sequence[int], weights: Sequence[float], divisor: float
) -> list[Algorithm]:
    """Returns halvings that share so many trials by weight.

    Args:
        whole: the length of a trial.
        trials: of all halvings.
        counts: the number of rungs of each.
        weights: of each.
        divisor: of all halvings.
    """
    shares = [max(1, int(weight / sum(weights) * trials)) for weight in weights]
    shares[0] += max(0, trials - sum(shares))
    return [
        Halving(share, _rungs(whole, count, divisor), divisor)
        for share, count in zip(shares, counts, strict=True)
    ]
