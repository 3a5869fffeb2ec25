"""Makes and runs an experiment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from generic_trainer._core.cluster import tf_config
from generic_trainer.errors import ConfigurationError
from generic_trainer.trials.experiment._experiment import Experiment, RunConfig
from generic_trainer.trials.experiment._hparams import HParams
from generic_trainer.trials.experiment._make import make_experiment

__all__ = ["run"]

_SCHEDULES = (
    "train",
    "evaluate",
    "train_and_evaluate",
    "local_run",
    "continuous_eval",
    "test",
)
_OF_TASK = {"worker": "train", "evaluator": "continuous_eval"}


def run(
    experiment_fn: Callable[..., Experiment],
    output_dir: str | None = None,
    schedule: str | None = None,
    run_config: Any = None,
    hparams: HParams | None = None,
) -> Any:
    """Calls `experiment_fn`, then the method of the Experiment that `schedule` names.

    Args:
        experiment_fn: takes `(run_config, hparams)`, or `(run_config)`, or in its oldest form
            `(output_dir)`.
        output_dir: where checkpoints and event files go; a RunConfig is taken for `run_config`.
        schedule: a method's name. By default "train_and_evaluate" on one machine; in a cluster
            "train" on workers and "continuous_eval" on the evaluator.
        run_config: the configuration of the run; its `model_dir` is the place.
        hparams: passed on.

    Returns:
        What the method returns.

    Raises:
        ConfigurationError: arguments contradict each other or `experiment_fn` makes no Experiment.
    """
    if isinstance(output_dir, RunConfig):
        output_dir, run_config = None, output_dir
    if (output_dir is None) == (run_config is None):
        raise ConfigurationError(
            "learn_runner.run needs one of run_config=RunConfig(model_dir=...) and output_dir"
        )
    experiment = make_experiment(experiment_fn, output_dir, run_config, hparams)
    return getattr(experiment, _checked(schedule or _default_schedule()))()


def _checked(schedule: str) -> str:
    if schedule not in _SCHEDULES:
        raise ConfigurationError(
            f"schedule must be one of {', '.join(_SCHEDULES)}, but got {schedule!r}"
        )
    return schedule


def _default_schedule() -> str:
    task = tf_config().get("task") or {}
    return _OF_TASK.get(task.get("type", ""), "train_and_evaluate")
