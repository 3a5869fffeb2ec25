"""Experiments made and run: by `run` in a script, by `run_fn_from_experiment` in a pipeline."""

import os
from collections.abc import Callable
from typing import Any

from generic_trainer import estimator as tf_estimator
from generic_trainer._core.cluster import is_one_of_several, tf_config
from generic_trainer.errors import ConfigurationError, ExportError
from generic_trainer.training import distributed, is_chief
from generic_trainer.trials._estimator_exports import export_features
from generic_trainer.trials._pipeline import Pipeline, current_pipeline, in_pipeline, tuned_values
from generic_trainer.trials._trial import takes
from generic_trainer.trials.experiment._experiment import Experiment
from generic_trainer.trials.experiment._hparams import HParams
from generic_trainer.trials.experiment._learn import RunConfig
from generic_trainer.user_code import is_importing

__all__ = ["run"]  # `run_fn_from_experiment` is offered by the package

_SCHEDULES = (
    "train evaluate train_and_evaluate local_run continuous_train_and_eval continuous_eval "
    "continuous_eval_on_train_data run_std_server test"
)
_SCHEDULE_OF_TASK = {"worker": "train", "evaluator": "continuous_eval"}


def run(
    experiment_fn: Callable[..., Experiment],
    output_dir: str | None = None,
    schedule: str | None = None,
    run_config: Any = None,
    hparams: HParams | None = None,
) -> Any:
    """Calls `experiment_fn`, then the method of the Experiment that `schedule` names.

    In a module file of a pipeline it does the same as the `run_fn` of `run_fn_from_experiment`.

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
    if is_importing():  # into a pipeline, which runs the script later
        return None
    if isinstance(output_dir, tf_estimator.RunConfig):
        output_dir, run_config = None, output_dir
    if (output_dir is None) == (run_config is None):
        raise ConfigurationError(
            "learn_runner.run needs one of run_config=RunConfig(model_dir=...) and output_dir"
        )
    pipeline = current_pipeline()
    if pipeline is not None:
        output_dir = pipeline.model_run_dir
        run_config = run_config and run_config.replace(model_dir=output_dir)
        hparams = hparams and _tuned(hparams, pipeline)
    if run_config is None:
        arguments: tuple[Any, ...] = (output_dir,)
    elif not run_config.model_dir:
        raise ConfigurationError("run_config must have a model_dir: RunConfig(model_dir=...)")
    elif takes(experiment_fn, run_config, hparams):
        arguments = run_config, hparams
    else:
        arguments = (run_config,)
    with tf_estimator.first_behavior(getattr(experiment_fn, "__module__", "")):
        experiment = experiment_fn(*arguments)
    if not isinstance(experiment, Experiment):
        raise ConfigurationError(f"experiment_fn must return an Experiment, got {experiment!r}")
    if pipeline is not None and experiment.train_steps is None:
        experiment.train_steps = getattr(pipeline, "train_steps", None)
    if not schedule:  # several workers all do the same, of which the chief evaluates
        task = {} if is_one_of_several() else tf_config().get("task") or {}
        schedule = _SCHEDULE_OF_TASK.get(task.get("type", ""), "train_and_evaluate")
    if schedule not in _SCHEDULES.split():
        raise ConfigurationError(f"schedule must be one of {_SCHEDULES}, but got {schedule!r}")
    with distributed.eager_mode():  # a main program of TensorFlow 1 runs in a graph
        result = getattr(experiment, schedule)()
        if pipeline is not None and is_chief():
            _publish(experiment, pipeline)
    return result


def run_fn_from_experiment(
    experiment_fn: Callable[..., Experiment], hparams: HParams | None = None
) -> Callable[[Any], None]:
    """Returns the `run_fn` that trains an Experiment and publishes the export.

    1. Checkpoints and event files go into the ModelRun artifact.
    2. `custom_config` changes the hyperparameters of the names that `hparams` has; the values of
       the component's input `hyperparameters` come last and win.
    3. Without `train_steps`, the Experiment ends at `train_args.num_steps`.
    4. What its export strategy writes is published, or without one the model for the features of
       the evaluation data. `generic_trainer.trials.get_pipeline()` has the pipeline's inputs.

    Args:
        experiment_fn: takes `(run_config, hparams)` or `(run_config)`.
        hparams: names and defaults.
    """

    def run_fn(fn_args: Any) -> None:
        with in_pipeline(fn_args):
            run(experiment_fn, run_config=RunConfig(), hparams=hparams or HParams())

    return run_fn


def _tuned(hparams: HParams, pipeline: Pipeline) -> HParams:
    own = HParams(**hparams.values())
    changes = {**(pipeline.custom_config or {}), **tuned_values(pipeline)}
    return own.override_from_dict({name: changes[name] for name in changes if name in own})


def _publish(experiment: Experiment, pipeline: Pipeline) -> None:
    estimator = experiment.estimator
    match experiment.export_strategies:
        case []:
            folder = os.path.join(estimator.model_dir, "export", "features")
            remedy = "give the Experiment export_strategies=[FinalExporter(name, receiver_fn)]."
            export_features(estimator, experiment.eval_input_fn, folder, pipeline, remedy)
        case [exporter]:
            tf_estimator.copy_newest_export(estimator, exporter, pipeline.serving_model_dir)
        case several:
            raise ExportError(
                "The Experiment must have one export strategy, to write the model that is "
                f"published, but it has {[exporter.name for exporter in several]}"
            )
