"""Calls `experiment_fn`, in whichever of its historical forms it was written."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from generic_trainer.errors import ConfigurationError
from generic_trainer.trials.experiment._experiment import Experiment

__all__ = ["make_experiment"]


def make_experiment(
    experiment_fn: Callable[..., Any], output_dir: str | None, run_config: Any, hparams: Any
) -> Experiment:
    """Returns the Experiment.

    Args:
        experiment_fn: takes `(run_config, hparams)`, or `(run_config)`; without a `run_config`,
            `(output_dir)`.
        output_dir: where checkpoints and event files go.
        run_config: the configuration of the run.
        hparams: the hyperparameters.

    Raises:
        ConfigurationError: `run_config` names no directory, or the result is no Experiment.
    """
    if run_config is not None and not run_config.model_dir:
        raise ConfigurationError("run_config must have a model_dir: RunConfig(model_dir=...)")
    made = experiment_fn(*_arguments(experiment_fn, output_dir, run_config, hparams))
    if not isinstance(made, Experiment):
        raise ConfigurationError(f"experiment_fn must return an Experiment, got {made!r}")
    return made


def _arguments(
    experiment_fn: Callable[..., Any], output_dir: str | None, run_config: Any, hparams: Any
) -> tuple[Any, ...]:
    if run_config is None:
        return (output_dir,)
    try:
        inspect.signature(experiment_fn).bind(run_config, hparams)
    except TypeError:
        return (run_config,)
    return (run_config, hparams)
