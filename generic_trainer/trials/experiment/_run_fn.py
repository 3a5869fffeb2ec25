"""A `run_fn` out of an `experiment_fn`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from generic_trainer.errors import ExportError
from generic_trainer.estimator._exports import copy_newest_export
from generic_trainer.training import is_chief
from generic_trainer.trials.experiment import learn_runner
from generic_trainer.trials.experiment._experiment import Experiment, RunConfig
from generic_trainer.trials.experiment._hparams import HParams
from generic_trainer.trials.experiment._make import make_experiment

__all__ = ["run_fn_from_experiment"]


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
        made: list[Experiment] = []

        def remember(run_config: Any, hparams: Any) -> Experiment:
            made.append(make_experiment(experiment_fn, None, run_config, hparams))
            return made[-1]

        learn_runner.run(
            remember,
            run_config=RunConfig(model_dir=fn_args.model_run_dir),
            hparams=_overridden(hparams, fn_args),
        )
        if is_chief():
            _publish(made[-1], fn_args.serving_model_dir)

    return run_fn


def _overridden(hparams: HParams | None, fn_args: Any) -> HParams:
    own = HParams(**hparams.values()) if hparams is not None else HParams()
    tuned = (fn_args.hyperparameters or {}).get("values") or {}
    found = {**(fn_args.custom_config or {}), **tuned}
    return own.override_from_dict({name: found[name] for name in found if name in own})


def _publish(experiment: Experiment, serving_model_dir: str) -> None:
    if len(experiment.export_strategies) != 1:
        names = [exporter.name for exporter in experiment.export_strategies]
        raise ExportError(
            "The Experiment must have one export strategy, to write the model that is published: "
            "Experiment(..., export_strategies=[estimator.FinalExporter(name, "
            f"serving_input_receiver_fn)]), but it has {names}"
        )
    [exporter] = experiment.export_strategies
    copy_newest_export(experiment.estimator, exporter, serving_model_dir)
