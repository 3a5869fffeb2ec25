"""A `run_fn` out of a trial class."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from generic_trainer._core.files import gfile, write_whole
from generic_trainer.errors import ConfigurationError, TrainingError
from generic_trainer.training import is_chief
from generic_trainer.trials._config import ExperimentSettings, Length, parse_experiment
from generic_trainer.trials._fields import log_unused
from generic_trainer.trials._kept import ExperimentRun, KeptTrial
from generic_trainer.trials._pipeline import (
    Pipeline,
    experiment_config,
    in_pipeline,
    tuned_values,
)
from generic_trainer.trials._search import Queue, make_search
from generic_trainer.trials._side_by_side import ClusterPart, train_side_by_side
from generic_trainer.trials._trial import Trial, chosen_class, code_file, current

_logger = logging.getLogger(__name__)


def run_fn_from_trial(trial_class: type[Trial]) -> Callable[[Any], None]:
    """Returns the `run_fn` that runs an experiment with a trial class.

    ::

        run_fn = run_fn_from_trial(MnistTrial)
        GenericTrainer(module_file=..., custom_config={"searcher": ..., "hyperparameters": ...})

    1. The experiment configuration is the component's `custom_config`, or the YAML file that
       ``custom_config={"experiment_config": path}`` names, local or remote. A relative path starts
       at the module, and finds a data file of a package; none is packed beside a plain module.
    2. Values of the component's input `hyperparameters` win over what the configuration says. Where
       that says no length, it is `train_args.num_steps`; where it has epochs and says nothing of
       their records, they are the examples of the split "train".
    3. Several trials run one after another, or side by side on the launcher's workers, as the
       searcher says; see `_search` and `_side_by_side`. The best one by its metric is exported,
       from its best checkpoint; without a metric it is the last state.
    4. Every trial is recorded in `trials.json` in the ModelRun artifact, its metrics under
       `trials/<number>` for TensorBoard.
    5. A run that was killed goes on from its last checkpoint.

    Args:
        trial_class: a subclass of one of the trial APIs' base classes.

    Raises:
        ConfigurationError: it is not.
    """
    if not (isinstance(trial_class, type) and issubclass(trial_class, Trial)):
        raise ConfigurationError(
            f"run_fn_from_trial takes a class such as TensorFlowTrial's, but got {trial_class!r}"
        )

    return _run_fn_of(trial_class.__module__, lambda entrypoint: trial_class)


def run_fn_of_module(module: ModuleType) -> Callable[[Any], None]:
    """Returns the `run_fn` of the trial class that a module defines; see `chosen_class`."""
    return _run_fn_of(module.__name__, functools.partial(chosen_class, module))


def _run_fn_of(module: str, choose: Callable[[str | None], type[Trial]]) -> Callable[[Any], None]:
    def run_fn(fn_args: Any) -> None:
        with in_pipeline(fn_args) as pipeline:
            config = experiment_config(fn_args, code_file(module))
            settings = _settings(config, pipeline)
            trial_class = choose(config.get("entrypoint"))
            log_unused(config, is_job=trial_class.is_script)
            _run(trial_class, settings, fn_args)

    return run_fn


def _settings(config: Mapping[str, Any], pipeline: Pipeline) -> ExperimentSettings:
    """Returns the settings of an experiment; the pipeline has what the configuration leaves out."""
    steps = getattr(pipeline, "train_steps", None)
    settings = parse_experiment(config, Length(steps) if steps else None)
    counts = getattr(pipeline, "num_examples", None)
    if counts and settings.counts_epochs and not settings.records_per_epoch:
        records = int(counts["train"])
        _logger.info("records_per_epoch is not given: an epoch is all %d examples", records)
        settings = dataclasses.replace(
            settings, records_per_epoch=records, raw={**config, "records_per_epoch": records}
        )
    return settings


def _run(trial_class: type[Trial], settings: ExperimentSettings, fn_args: Any) -> None:
    queue = Queue(make_search(settings, tuned_values(fn_args)))
    part = ClusterPart.of_this_worker(settings, queue.size)
    if part.number >= part.count:
        _logger.warning("%d trials train side by side: none is left for this worker", part.count)
        return
    experiment = ExperimentRun(trial_class, settings, fn_args, _source(settings, fn_args))
    # No other run of the same key may delete a checkpoint before it is exported.
    with part.as_cluster(), contextlib.ExitStack() as locks:
        if part.count > 1:
            finished = train_side_by_side(experiment, queue, part, locks)
        else:
            finished = _train_one_after_another(experiment, queue, locks)
        if part.number:
            return
        best = _best(finished, settings)
        if is_chief():
            _write_record(finished, best, fn_args.model_run_dir)
        with (
            current(exported := best.exported()),
            contextlib.closing(trial_class.open_controller(exported)) as controller,
        ):
            controller.export(fn_args)
    if trial_class.is_script and is_chief():  # in a pipeline, all go when the model is published
        _delete_unwanted(finished, settings)


def _train_one_after_another(
    experiment: ExperimentRun, queue: Queue, locks: contextlib.ExitStack
) -> list[KeptTrial]:
    trials: dict[int, KeptTrial] = {}
    while (stretch := queue.take()) is not None:
        number = stretch.trial.trial_id
        if number not in trials:
            trials[number] = experiment.open(stretch.trial, locks)
        queue.ended(number, experiment.train(trials[number], stretch))
    return [trials[number] for number in sorted(trials)]


def _delete_unwanted(finished: list[KeptTrial], settings: ExperimentSettings) -> None:
    """Deletes the checkpoints that `checkpoint_storage` does not ask for, as Determined did."""
    storage = settings.raw.get("checkpoint_storage") or {}
    of_all, of_each, latest = (
        int(storage.get(f"save_{name}", default))
        for name, default in (("experiment_best", 0), ("trial_best", 1), ("trial_latest", 1))
    )
    sign = 1 if settings.searcher.smaller_is_better else -1
    measured = [trial for trial in finished if trial.progress.best is not None]
    measured.sort(key=lambda trial: sign * (trial.progress.best or 0.0))
    for trial in finished:
        unwanted = [] if of_each or trial in measured[:of_all] else [trial.best]
        for manager in unwanted if latest else [*unwanted, trial.latest]:
            gfile().rmtree(manager.directory)


def _source(settings: ExperimentSettings, fn_args: Any) -> str | None:
    """Returns the model that trials start from, where the searcher names another experiment's."""
    fields = ("source_trial_id", "source_checkpoint_uuid")
    named = [name for name in fields if settings.searcher.options.get(name) is not None]
    base_model: str | None = getattr(fn_args, "base_model", None)
    if named and not base_model:
        raise ConfigurationError(
            f"searcher.{named[0]} asks for the weights of another experiment, which are the "
            "component's base model here: pass base_model=..., such as the model of a Resolver, to "
            "GenericTrainer, or leave the field out."
        )
    return base_model if named else None


def _best(trials: list[KeptTrial], settings: ExperimentSettings) -> KeptTrial:
    finished = [trial for trial in trials if trial.error is None]
    if not finished:
        raise TrainingError(f"All trials failed, {len(trials)}. The last error: {trials[-1].error}")
    best = finished[0]
    for trial in finished[1:]:
        value = trial.progress.best
        if value is not None and settings.searcher.is_better(value, best.progress.best):
            best = trial
    return best


def _write_record(finished: list[KeptTrial], best: KeptTrial, model_run_dir: str) -> None:
    record = [
        {
            "trial_id": trial.run.trial_id,
            "hparams": dict(trial.run.hparams),
            "seed": trial.run.seed,
            "batches": trial.progress.batches,
            "best": trial.progress.best,
            "best_at": trial.progress.best_at,
            "exported": trial is best,
            "error": trial.error,
            "history": trial.progress.history,
        }
        for trial in finished
    ]
    write_whole(os.path.join(model_run_dir, "trials.json"), json.dumps(record, indent=2))
