"""Experiment configurations as native experiments change them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from generic_trainer.trials._sole_trial import sole_trial
from generic_trainer.trials._trial import TrialRun

__all__ = ["local_run", "one_batch_config"]


def local_run(config: Mapping[str, Any] | None) -> TrialRun:
    """Returns the one trial of a local test.

    What only a cluster can do is ignored; there is one slot, and hyperparameters are drawn with the
    seed of the experiment.
    """
    run = sole_trial(config or {})
    searcher = {"name": "single", "max_length": {"batches": 1}}
    return dataclasses.replace(
        run, config={"searcher": searcher, **run.config, "scheduling_unit": 1}
    )


def one_batch_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a configuration that trains one batch on the cluster, to see that all fits together.

    It validates and writes a checkpoint after that batch, and keeps none of the checkpoints.
    """
    searcher = config.get("searcher") or {}
    storage = dict.fromkeys(("save_experiment_best", "save_trial_best", "save_trial_latest"), 0)
    return {
        **config,
        "description": f"[test-mode] {config.get('description', '')}".strip(),
        "scheduling_unit": 1,
        "min_validation_period": {"batches": 1},
        "searcher": {
            "name": "single",
            "metric": searcher.get("metric"),
            "max_length": {"batches": 1},
        },
        "max_restarts": 0,
        "hyperparameters": dict(local_run(config).hparams),
        "checkpoint_storage": {**(config.get("checkpoint_storage") or {}), **storage},
    }
