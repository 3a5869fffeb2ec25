"""Searches: the trials of an experiment, which the algorithm of its searcher has trained.

A search calls a function that trains a trial up to a length, and hands the metric that this returns
to the algorithm. It has no other inputs, so an experiment that was killed repeats its search.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from generic_trainer.trials._algorithms import ALGORITHMS, Length, Measurement
from generic_trainer.trials._config import ExperimentSettings
from generic_trainer.trials._hyperparameters import Constant, grid, sample
from generic_trainer.trials._trial import TrialRun

# Trains a trial up to a length and validates it; returns its metric, as `Measurement` has it.
Train = Callable[[TrialRun, Length], float]


class Search:
    """The search of an experiment.

    The first trial of every search is the one of a `single` search with the same seed. Values that
    were `tuned` before replace ranges and constants.

    Attributes:
        size: the number of trials.
    """

    def __init__(self, settings: ExperimentSettings, tuned: Mapping[str, Any]) -> None:
        fixed = {name: Constant(value) for name, value in tuned.items()}
        self._settings = settings
        searcher = settings.searcher
        self._ranges = {**settings.hyperparameters, **fixed}
        self._points = [*grid(self._ranges)] if searcher.name == "grid" else None
        make = ALGORITHMS[searcher.name]
        values = {**dict(searcher), "num_points": len(self._points or ())}
        fields = {name: values[name] for name in inspect.signature(make).parameters}
        self._algorithms = make(**fields)
        self.size = sum(algorithm.trials for algorithm in self._algorithms)

    def run(self, train: Train, part: int = 0, parts: int = 1) -> None:
        """Has the trials of one of several parts of the cluster trained."""
        new_numbers = itertools.count(part + 1, parts)
        for algorithm in self._algorithms:
            share = len(range(part, algorithm.trials, parts))
            algorithm = dataclasses.replace(algorithm, trials=share)
            history: list[Measurement] = []
            while proposal := algorithm.propose(history):
                number = proposal.trial or next(new_numbers)
                metric = train(self.trial(number), proposal.length)
                history.append(Measurement(number, proposal.length, metric))

    def trial(self, number: int) -> TrialRun:
        """Returns a trial; the first one is number 1."""
        settings = self._settings
        index = number - 1
        seed = settings.reproducibility.experiment_seed + index
        hparams = self._points[index] if self._points else sample(self._ranges, seed)
        return TrialRun(number, settings.raw, hparams, seed, settings.resources.slots_per_trial)
