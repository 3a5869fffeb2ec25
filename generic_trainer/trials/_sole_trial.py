"""The one trial of a configuration, where no experiment runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from generic_trainer.trials._experiment_config import ExperimentConfig
from generic_trainer.trials._hyperparameters import parse_hyperparameters, sample
from generic_trainer.trials._trial import TrialRun

__all__ = ["sole_trial"]

# Sections about what only a cluster can do.
_IGNORED = ("bind_mounts", "checkpoint_storage", "environment", "optimizations", "resources")


def sole_trial(config: Mapping[str, Any]) -> TrialRun:
    """Returns trial 1 on one slot; hyperparameters are drawn with the seed of the experiment.

    Args:
        config: an experiment configuration, or as much of it as the model needs.

    Raises:
        ConfigurationError: a hyperparameter is none.
    """
    kept = ExperimentConfig({name: part for name, part in config.items() if name not in _IGNORED})
    seed = kept.experiment_seed()
    hparams = sample(parse_hyperparameters(kept.get("hyperparameters") or {}), seed)
    return TrialRun(trial_id=1, config=dict(kept), hparams=hparams, seed=seed)
