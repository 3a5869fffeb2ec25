"""Which trials an experiment consists of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from generic_trainer.trials._config import Experiment
from generic_trainer.trials._hyperparameters import Constant, grid, sample
from generic_trainer.trials._trial import TrialRun

__all__ = ["trials_of"]


def trials_of(experiment: Experiment, tuned: Mapping[str, Any]) -> list[TrialRun]:
    """Returns the trials, in the order in which they run.

    The first trial of a random search is the one of a single search with the same seed.

    Args:
        experiment: the configuration.
        tuned: values that were found before, by a Tuner say; they take the place of ranges and
            constants.
    """
    fixed = {name: Constant(value) for name, value in tuned.items()}
    ranges = {**experiment.hyperparameters, **fixed}
    searcher = experiment.searcher
    if searcher.name == "grid":
        samples = list(grid(ranges))
    else:
        count = searcher.max_trials if searcher.name == "random" else 1
        samples = [sample(ranges, experiment.seed + index) for index in range(count)]
    return [
        TrialRun(
            trial_id=number,
            config=experiment.raw,
            hparams=hparams,
            seed=experiment.seed + number - 1,
            slots=experiment.slots,
        )
        for number, hparams in enumerate(samples, 1)
    ]
