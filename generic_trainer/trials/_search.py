"""Searches: which trials an experiment has, how long each trains, and which of them go on.

A search yields stretches of training, and hears how each ended. It depends on nothing else, so that
an experiment which was killed makes the same search once more, up to where it was.

================  ===============================================================================
`single`,         all trials train to the end
`random`, `grid`
`sync_halving`    trials start in a rung of short training; the best of it train on in the next,
                  `divisor` times as long, as many as the budget lets go on
`async_halving`   the same without waiting: who is among the best 1/`divisor` so far goes on
`adaptive…`       several of these side by side, with fewer or more rungs, by `mode`
`pbt`             a population: after each round copies of the best, with other hyperparameters,
                  replace the worst
================  ===============================================================================

Source: `master/pkg/searcher` of Determined 0.13; Li et al., "A System for Massively Parallel
Hyperparameter Tuning" (2018); Jaderberg et al., "Population Based Training" (2017).
"""

from __future__ import annotations

import bisect
import dataclasses
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from generic_trainer.trials._config import ExperimentSettings, Length
from generic_trainer.trials._hyperparameters import Constant, grid, near, sample
from generic_trainer.trials._trial import TrialRun

_DIVISOR = 4
_MAX_RUNGS = 5
_FRACTION = 0.2  # of a population: truncated, drawn anew, perturbed by


@dataclasses.dataclass(frozen=True)
class Stretch:
    """A trial, and how far it is to train before it is validated."""

    trial: TrialRun
    length: Length


class Search(Protocol):
    """What says which trials there are."""

    def begin(self) -> list[Stretch]:
        """Returns the first stretches."""

    def ended(self, trial_id: int, value: float) -> list[Stretch]:
        """Returns what else is to be done after a stretch of a trial.

        Args:
            trial_id: the trial's number.
            value: its metric, where less is better; infinite for a trial that will not go on.
        """


class Queue:
    """The stretches of a search that are to be trained, in their order.

    The trial that a copy is made of waits until the copy has trained: it starts from a checkpoint
    which the other's next ones replace.

    Attributes:
        trials: all that have begun, by their numbers.
    """

    def __init__(self, search: Search) -> None:
        self.trials: dict[int, TrialRun] = {}
        self._search, self._waiting = search, [*search.begin()]
        self._taken: set[int] = set()
        self._copied: dict[int, int] = {}  # copy that has not trained yet → its original
        self._note_copies(self._waiting)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do, nor will be."""
        return not self._waiting and not self._taken

    @property
    def size(self) -> int:
        """How many stretches wait."""
        return len(self._waiting)

    def take(self, trial_id: int | None = None) -> Stretch | None:
        """Returns the next stretch, or that of one trial; None where that has to wait for others.

        Each that is taken has to end, by `ended`.
        """
        for stretch in self._waiting:
            number = stretch.trial.trial_id
            if trial_id in (None, number) and number not in self._copied.values():
                self._waiting.remove(stretch)
                self._taken.add(number)
                self.trials.setdefault(number, stretch.trial)
                return stretch
        return None

    def ended(self, trial_id: int, value: float) -> None:
        """Takes in how a stretch has ended; see `Search.ended`."""
        self._taken.remove(trial_id)
        self._copied.pop(trial_id, None)
        more = self._search.ended(trial_id, value)
        self._note_copies(more)
        self._waiting += more

    def _note_copies(self, stretches: Sequence[Stretch]) -> None:
        for trial in (stretch.trial for stretch in stretches):
            if trial.parent is not None and trial.trial_id not in self.trials:
                self._copied[trial.trial_id] = trial.parent


def make_search(settings: ExperimentSettings, tuned: Mapping[str, Any]) -> Search:
    """Returns the search of an experiment.

    The first trial of all is the one of a single search with the same seed. Values that were
    `tuned` before take the place of ranges and constants.
    """
    fixed = {name: Constant(value) for name, value in tuned.items()}
    trials = _Trials(settings, {**settings.hyperparameters, **fixed})
    searcher = settings.searcher
    length, options = searcher.max_length, searcher.options

    def number(name: str, default: float = 0) -> float:
        return float(options.get(name) or default)

    divisor, count = number("divisor", _DIVISOR), int(number("max_trials", 1))
    rungs = int(number("num_rungs", 1))
    if searcher.name == "grid":
        return _ToTheEnd(trials, length, list(grid(trials.hyperparameters)))
    if searcher.name in ("single", "random"):
        return _ToTheEnd(trials, length, [None] * (count if searcher.name == "random" else 1))
    if searcher.name == "pbt":
        return _Population(trials, Length.parse(options["length_per_round"]), options)
    if searcher.name == "async_halving":
        at_once = int(number("max_concurrent_trials")) or int(divisor ** (rungs - 1))
        return _Halving(trials, _lengths(length, rungs, divisor), count, at_once)
    budget = Length.parse(options["budget"]).count if "budget" in options else 0
    if searcher.name == "sync_halving":
        return _by_budget(trials, length, rungs, divisor, budget)
    if searcher.name == "adaptive_asha":
        return _adaptive_asha(trials, length, divisor, count, options)
    brackets = _brackets(options, int(number("max_rungs", _MAX_RUNGS)))
    if searcher.name == "adaptive":
        share = budget // len(brackets)
        return _Brackets([_by_budget(trials, length, n, divisor, share) for n in brackets])
    shares = [max(1, (count + place) // len(brackets)) for place in reversed(range(len(brackets)))]
    parts = zip(brackets, shares, strict=True)
    return _Brackets([_by_trials(trials, length, n, divisor, share) for n, share in parts])


class _Trials:
    """Makes trials, each with a sample of the hyperparameters and a seed of its own."""

    def __init__(self, settings: ExperimentSettings, hyperparameters: Mapping[str, Any]) -> None:
        self.hyperparameters, self.seed = hyperparameters, settings.seed
        self._settings, self._count = settings, 0

    def make(self, hparams: Mapping[str, Any] | None = None, parent: int | None = None) -> TrialRun:
        seed = self.seed + self._count
        self._count += 1
        hparams = sample(self.hyperparameters, seed) if hparams is None else hparams
        settings = self._settings
        return TrialRun(self._count, settings.raw, hparams, seed, settings.slots, parent=parent)


class _ToTheEnd:
    """Trials that all train to the end; None has its hyperparameters drawn."""

    def __init__(
        self, trials: _Trials, length: Length, samples: Sequence[Mapping[str, Any] | None]
    ) -> None:
        self._stretches = [Stretch(trials.make(hparams), length) for hparams in samples]

    def begin(self) -> list[Stretch]:
        return self._stretches

    def ended(self, trial_id: int, value: float) -> list[Stretch]:
        return []


@dataclasses.dataclass
class _Rung:
    """Trials that have trained equally long, the best of which train on.

    Attributes:
        start: how many trials it gets, and `promote` how many of these go on; without them it is
            the best 1/`divisor` of those that have come so far.
    """

    length: Length
    divisor: float = _DIVISOR
    start: int = 0
    promote: int = 0
    results: list[tuple[float, int]] = dataclasses.field(default_factory=list)
    promoted: set[int] = dataclasses.field(default_factory=set)

    def promotion(self, trial_id: int, value: float) -> int | None:
        """Takes in a result, and returns the trial that goes on now; None if none does."""
        place = bisect.bisect_right(self.results, value, key=lambda result: result[0])
        self.results.insert(place, (value, trial_id))
        count = len(self.results)
        if self.start:
            before = due = max(0, count + self.promote - self.start)
            before -= 1
        else:
            before, due = int((count - 1) / self.divisor), int(count / self.divisor)
        if place < due:
            chosen = trial_id
        elif due and before < due and self.results[due - 1][1] not in self.promoted:
            chosen = self.results[due - 1][1]
        else:
            return None
        self.promoted.add(chosen)
        return chosen


class _Halving:
    """Successive halving; without `max_trials` all trials of the first rung start at once."""

    def __init__(
        self,
        trials: _Trials,
        rungs: Sequence[_Rung],
        max_trials: int,
        at_once: int,
    ) -> None:
        self._trials, self._rungs = trials, rungs
        self._max_trials, self._at_once = max_trials, min(at_once, max_trials)
        self._made: dict[int, TrialRun] = {}
        self._rung_of: dict[int, int] = {}
        self._over: set[int] = set()

    def begin(self) -> list[Stretch]:
        return [self._create() for _ in range(self._at_once)]

    def ended(self, trial_id: int, value: float) -> list[Stretch]:
        if math.isinf(value):
            self._over.add(trial_id)
        index = self._rung_of[trial_id]
        if index + 1 < len(self._rungs):
            chosen = self._rungs[index].promotion(trial_id, value)
            if chosen is not None:
                self._rung_of[chosen] = index + 1
                if chosen in self._over:  # as if it had trained on, and were the worst
                    return self.ended(chosen, math.inf)
                return [Stretch(self._made[chosen], self._rungs[index + 1].length)]
        return [self._create()] if len(self._made) < self._max_trials else []

    def _create(self) -> Stretch:
        trial = self._trials.make()
        self._made[trial.trial_id], self._rung_of[trial.trial_id] = trial, 0
        return Stretch(trial, self._rungs[0].length)


class _Brackets:
    """Searches side by side."""

    def __init__(self, searches: Sequence[Search]) -> None:
        self._searches = searches
        self._search_of: dict[int, Search] = {}

    def begin(self) -> list[Stretch]:
        return [stretch for one in self._searches for stretch in self._noted(one, one.begin())]

    def ended(self, trial_id: int, value: float) -> list[Stretch]:
        search = self._search_of[trial_id]
        return self._noted(search, search.ended(trial_id, value))

    def _noted(self, search: Search, stretches: list[Stretch]) -> list[Stretch]:
        self._search_of.update((one.trial.trial_id, search) for one in stretches)
        return stretches


class _Population:
    """Population based training."""

    def __init__(self, trials: _Trials, length: Length, options: Mapping[str, Any]) -> None:
        replace = options.get("replace_function") or {}
        explore = options.get("explore_function") or {}
        self._trials, self._length = trials, length
        self._size, self._rounds = int(options["population_size"]), int(options["num_rounds"])
        self._replaced = int(replace.get("truncate_fraction", _FRACTION) * self._size)
        self._resample = explore.get("resample_probability", _FRACTION)
        self._factor = explore.get("perturb_factor", _FRACTION)
        self._random = random.Random(trials.seed)
        self._members: dict[int, TrialRun] = {}
        self._trained: dict[int, int] = {}  # rounds of each
        self._values: dict[int, float] = {}

    def begin(self) -> list[Stretch]:
        return [self._next(self._trials.make()) for _ in range(self._size)]

    def ended(self, trial_id: int, value: float) -> list[Stretch]:
        self._values[trial_id] = value
        if len(self._values) < len(self._members):
            return []
        self._rounds -= 1
        ranked = sorted(self._members, key=lambda one: (self._values[one], one))
        going = [one for one in ranked if math.isfinite(self._values[one])]
        if not self._rounds or not going:
            return []
        kept = [one for one in ranked[: len(ranked) - self._replaced] if one in going]
        copied = [self._members[one] for one in going[: self._replaced]]
        members, self._values = self._members, {}
        self._members = {}
        # The copies first: they start from checkpoints that their parents' next round replaces.
        stretches = [
            self._next(self._trials.make(self._explored(one.hparams), parent=one.trial_id))
            for one in copied
        ]
        return [*stretches, *(self._next(members[one]) for one in kept)]

    def _next(self, trial: TrialRun) -> Stretch:
        self._members[trial.trial_id] = trial
        rounds = self._trained[trial.trial_id] = self._trained.get(trial.trial_id, 0) + 1
        return Stretch(trial, dataclasses.replace(self._length, count=self._length.count * rounds))

    def _explored(self, hparams: Mapping[str, Any]) -> dict[str, Any]:
        """Draws some hyperparameters anew, and moves the others up or down."""
        ranges = self._trials.hyperparameters
        drawn = sample(ranges, self._random.randrange(2**32))
        return {
            name: drawn[name]
            if self._random.random() < self._resample
            else near(ranges[name], value, self._random.choice((-1, 1)) * self._factor)
            for name, value in sorted(hparams.items())
        }


def _lengths(length: Length, rungs: int, divisor: float) -> list[_Rung]:
    """Returns rungs, the last of which has the whole length."""
    counts = (max(1, int(length.count / divisor**left)) for left in reversed(range(rungs)))
    return [_Rung(dataclasses.replace(length, count=count), divisor) for count in counts]


def _synchronous(trials: _Trials, rungs: list[_Rung], starts: Sequence[int]) -> _Halving:
    for rung, start, promote in zip(rungs, starts, [*starts[1:], 0], strict=True):
        rung.start, rung.promote = start, promote
    return _Halving(trials, rungs, starts[0], starts[0])


def _by_budget(
    trials: _Trials, length: Length, rungs: int, divisor: float, budget: int
) -> _Halving:
    """Returns a synchronous halving that trains `budget` in all trials together."""
    made = _lengths(length, rungs, divisor)
    shape = [max(1, int(divisor**left)) for left in reversed(range(rungs))]
    counts = [0, *(rung.length.count for rung in made)]
    units = sum((counts[index + 1] - counts[index]) * start for index, start in enumerate(shape))
    starts: list[int] = []
    for start in shape:
        scaled = max(1, int(budget / units * start))
        starts.append(min(scaled, starts[-1]) if starts else scaled)
    return _synchronous(trials, made, starts)


def _by_trials(trials: _Trials, length: Length, rungs: int, divisor: float, count: int) -> _Halving:
    """Returns a synchronous halving of so many trials."""
    starts = [max(1, int(count / divisor**index)) for index in range(rungs)]
    return _synchronous(trials, _lengths(length, rungs, divisor), starts)


def _adaptive_asha(
    trials: _Trials, length: Length, divisor: float, count: int, options: Mapping[str, Any]
) -> _Brackets:
    """Returns asynchronous halvings which train about equally long, all trials together."""

    def most(number: int) -> int:
        return int(math.log(max(1, number)) / math.log(divisor)) + 1

    rungs = min(int(options.get("max_rungs") or _MAX_RUNGS), most(length.count), most(count))
    brackets = _brackets(options, rungs)
    weights = [divisor ** (number - 1) / number for number in brackets]
    shares = [max(1, int(weight / sum(weights) * count)) for weight in weights]
    shares[0] += max(0, count - sum(shares))
    at_once = int(options.get("max_concurrent_trials") or 0)
    if at_once:
        each, rest = divmod(max(at_once, len(brackets)), len(brackets))
    else:
        each, rest = max(shares[-1], int(divisor)), 0
    return _Brackets(
        [
            _Halving(trials, _lengths(length, number, divisor), share, each + (place < rest))
            for place, (number, share) in enumerate(zip(brackets, shares, strict=True))
        ]
    )


_MODES: Mapping[str, Callable[[int], int]] = {  # the fewest rungs of a bracket
    "conservative": lambda rungs: 1,
    "standard": lambda rungs: (rungs - 1) // 2 + 1,
    "aggressive": lambda rungs: rungs,
}


def _brackets(options: Mapping[str, Any], rungs: int) -> list[int]:
    """Returns the rungs of each bracket, those that end most trials early first."""
    fewest = _MODES[options.get("mode") or "standard"](rungs)
    given = map(int, options.get("bracket_rungs") or range(fewest, rungs + 1))
    return sorted(given, reverse=True)
