"""Experiments made and run: by `run` in a script, by `run_fn_from_experiment` in a pipeline."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from generic_trainer import estimator as tf_estimator
from generic_trainer._core.cluster import is_one_of_several, tf_config
from generic_trainer.errors import ConfigurationError, ExportError
from generic_trainer.training import is_chief
from generic_trainer.trials._pipeline import tuned_values
from generic_trainer.trials.experiment._experiment import Experiment
from generic_trainer.trials.experiment._hparams import HParams
from generic_trainer.trials.experiment.contrib import RunConfig

__all__ = ["run", "tune"]  # `run_fn_from_experiment` is offered by the package

_SCHEDULES = (
    "train", "evaluate", "train_and_evaluate", "local_run", "continuous_train_and_eval",
    "continuous_eval", "continuous_eval_on_train_data", "run_std_server", "test",
)  # fmt: skip
_SCHEDULE_OF_TASK = {"worker": "train", "evaluator": "continuous_eval"}


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
            with parameter servers "train" on workers and "continuous_eval" on the evaluator.
        run_config: the configuration of the run; its `model_dir` is the place.
        hparams: passed on.

    Returns:
        What the method returns.

    Raises:
        ConfigurationError: arguments contradict each other or `experiment_fn` makes no Experiment.
    """
    if isinstance(output_dir, tf_estimator.RunConfig):
        output_dir, run_config = None, output_dir
    if (output_dir is None) == (run_config is None):
        raise ConfigurationError(
            "learn_runner.run needs one of run_config=RunConfig(model_dir=...) and output_dir"
        )
    experiment = _make_experiment(experiment_fn, output_dir, run_config, hparams)
    schedule = schedule or _default_schedule()
    if schedule not in _SCHEDULES:
        raise ConfigurationError(
            f"schedule must be one of {', '.join(_SCHEDULES)}, but got {schedule!r}"
        )
    return getattr(experiment, schedule)()


def tune(experiment_fn: Callable[..., Experiment], tuner: Any) -> None:
    """Has a tuner run an Experiment for each of its trials.

    Args:
        experiment_fn: takes `(run_config, hparams)`.
        tuner: `next_trial()` says whether there is another trial; `run_experiment(experiment_fn)`
            calls the function with its RunConfig and HParams, and runs what it returns.

    Source: `tf.contrib.learn.learn_runner.tune` of TensorFlow 1.
    """

    def make(run_config: Any, hparams: Any) -> Experiment:
        return _make_experiment(experiment_fn, None, run_config, hparams)

    while tuner.next_trial():
        tuner.run_experiment(make)


def run_fn_from_experiment(
    experiment_fn: Callable[..., Experiment], hparams: HParams | None = None
) -> Callable[[Any], None]:
    """Returns the `run_fn` that trains an Experiment and publishes what its exporter writes.

    1. Checkpoints and event files go into the ModelRun artifact.
    2. `custom_config` changes the hyperparameters of the names that `hparams` has; the values of
       the component's input `hyperparameters` come last and win.
    3. The Experiment has one export strategy.

    Args:
        experiment_fn: takes `(run_config, hparams)` or `(run_config)`.
        hparams: names and defaults.
    """

    def run_fn(fn_args: Any) -> None:
        run_config = RunConfig(model_dir=fn_args.model_run_dir)
        experiment = _make_experiment(experiment_fn, None, run_config, _tuned(hparams, fn_args))
        getattr(experiment, _default_schedule())()
        if is_chief():
            _publish(experiment, fn_args.serving_model_dir)

    return run_fn


def _make_experiment(
    experiment_fn: Callable[..., Any], output_dir: str | None, run_config: Any, hparams: Any
) -> Experiment:
    if run_config is None:
        made = experiment_fn(output_dir)
    elif not run_config.model_dir:
        raise ConfigurationError("run_config must have a model_dir: RunConfig(model_dir=...)")
    elif _takes_hparams(experiment_fn):
        made = experiment_fn(run_config, hparams)
    else:
        made = experiment_fn(run_config)
    if not isinstance(made, Experiment):
        raise ConfigurationError(f"experiment_fn must return an Experiment, got {made!r}")
    return made


def _takes_hparams(experiment_fn: Callable[..., Any]) -> bool:
    try:
        inspect.signature(experiment_fn).bind("run_config", "hparams")
    except TypeError:
        return False
    return True


def _default_schedule() -> str:
    if is_one_of_several():
        return "train_and_evaluate"  # all together; the chief evaluates
    task = tf_config().get("task") or {}
    return _SCHEDULE_OF_TASK.get(task.get("type", ""), "train_and_evaluate")


def _tuned(hparams: HParams | None, fn_args: Any) -> HParams:
    own = HParams(**hparams.values()) if hparams is not None else HParams()
    changes = {**(fn_args.custom_config or {}), **tuned_values(fn_args)}
    return own.override_from_dict({name: changes[name] for name in changes if name in own})


def _publish(experiment: Experiment, serving_model_dir: str) -> None:
    if len(experiment.export_strategies) != 1:
        names = [exporter.name for exporter in experiment.export_strategies]
        raise ExportError(
            "The Experiment must have one export strategy, to write the model that is published: "
            "Experiment(..., export_strategies=[estimator.FinalExporter(name, "
            f"serving_input_receiver_fn)]), but it has {names}"
        )
    [exporter] = experiment.export_strategies
    tf_estimator.copy_newest_export(experiment.estimator, exporter, serving_model_dir)
