"""A `run_fn` out of a trial class."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import json
import logging
import math
import numbers
import os
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.files import gfile, write_whole
from generic_trainer.errors import ConfigurationError
from generic_trainer.training import CheckpointManager, SavedCheckpoint, distributed, is_chief
from generic_trainer.trials._config import ExperimentSettings, Length, parse_experiment
from generic_trainer.trials._fields import log_unused
from generic_trainer.trials._loop import (
    Controller,
    TrialProgress,
    TrialSchedule,
    next_work,
    run,
)
from generic_trainer.trials._pipeline import (
    Pipeline,
    experiment_config,
    in_pipeline,
    tuned_values,
)
from generic_trainer.trials._process import code_file
from generic_trainer.trials._search import Stretch, make_search
from generic_trainer.trials._trial import Trial, TrialRun, chosen_class, current, downloaded

_logger = logging.getLogger(__name__)


@dataclasses.dataclass
class _KeptTrial:
    """A trial, its checkpoints and how far it is.

    Attributes:
        error: what it failed with, for good.
    """

    run: TrialRun
    latest: CheckpointManager
    best: CheckpointManager
    progress: TrialProgress
    error: Exception | None = None


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
    3. Several trials run one after another, as the searcher says; see `_search`. The best one by
       its metric is exported, from its best checkpoint; without a metric it is the last state.
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
    search = make_search(settings, tuned_values(fn_args))
    base_model = _source(settings, fn_args)
    trials: dict[int, _KeptTrial] = {}
    # No other run of the same key may delete a checkpoint before it is exported.
    with contextlib.ExitStack() as locks:
        waiting = collections.deque(search.begin())
        while waiting:
            stretch = waiting.popleft()
            number = stretch.trial.trial_id
            if number not in trials:
                trial = dataclasses.replace(stretch.trial, base_model=base_model)
                trials[number] = _kept(trial, trials, fn_args, locks)
                _logger.info("Trial %d: %s", number, dict(stretch.trial.hparams))
            value = _train(trial_class, trials[number], stretch, settings, fn_args)
            waiting.extend(search.ended(number, value))
        finished = [trials[number] for number in sorted(trials)]
        best = _best(finished, settings)
        if is_chief():
            _write_record(finished, best, fn_args.model_run_dir)
        with (
            current(exported := _exported(best)),
            contextlib.closing(trial_class.open_controller(exported)) as controller,
        ):
            controller.export(fn_args)
    if trial_class.is_script and is_chief():  # in a pipeline, all go when the model is published
        _delete_unwanted(finished, settings)


def _delete_unwanted(finished: list[_KeptTrial], settings: ExperimentSettings) -> None:
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
    """Returns the model that trials start from, where the searcher names one of another experiment.

    Raises:
        ConfigurationError: the component has no base model.
    """
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


def _kept(
    trial: TrialRun, others: Mapping[int, _KeptTrial], fn_args: Any, locks: contextlib.ExitStack
) -> _KeptTrial:
    """Opens the checkpoints of a trial, whose locks are kept as long as `locks` are."""
    writes = is_chief()
    if writes:
        log_dir = os.path.join(fn_args.model_run_dir, "trials", str(trial.trial_id))
        trial = dataclasses.replace(trial, log_dir=log_dir)
    latest = locks.enter_context(
        CheckpointManager(_directory(fn_args, trial, "latest"), writes=writes)
    )
    best = locks.enter_context(
        CheckpointManager(_directory(fn_args, trial, "best"), max_to_keep=1, writes=writes)
    )
    saved = latest.latest()
    _check_seen_by_all(saved, latest.directory)
    if saved is None and trial.parent is not None:
        copied = others[trial.parent].latest.latest()
        trial = _at(trial, 0, copied.path) if copied else trial
    return _KeptTrial(trial, latest, best, _progress_of(saved))


def _progress_of(saved: SavedCheckpoint | None) -> TrialProgress:
    return TrialProgress(**saved.metadata) if saved else TrialProgress()


def _train(
    trial_class: type[Trial],
    trial: _KeptTrial,
    stretch: Stretch,
    settings: ExperimentSettings,
    fn_args: Any,
) -> float:
    """Brings a trial to the end of a stretch; returns its metric, as `Search.ended` takes it.

    Where `max_restarts` is given, a trial that fails goes on so many times from its last
    checkpoint; one of several that fails again is left to itself.
    """
    schedule = TrialSchedule(
        settings, lambda: trial_class.global_batch_size(trial.run), stretch.length
    )
    restarts = int(settings.raw.get("max_restarts") or 0)
    for left in reversed(range(restarts + 1)):
        try:
            _continue(trial_class, trial, schedule)
            break
        except Exception as error:
            # Other workers wait for one that fails; the launcher starts all of them anew.
            if distributed.size() > 1 or not restarts:
                raise
            _logger.exception("Trial %d failed; restarts left: %d", trial.run.trial_id, left)
            trial.progress = _progress_of(trial.latest.latest())
            if not left:
                if settings.searcher.name == "single":
                    raise
                trial.error = error
    at_end = [
        entry["validation"].get(settings.searcher.metric)
        for entry in trial.progress.history
        if "validation" in entry and entry["batches"] == schedule.max_batches
    ]
    # Of workers that share a validation, all are told what the chief has found.
    value = distributed.gather(at_end[-1] if at_end else None)[0]
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        return math.inf
    return float(value) if settings.searcher.smaller_is_better else -float(value)


def _continue(trial_class: type[Trial], trial: _KeptTrial, schedule: TrialSchedule) -> None:
    """Trains from where a trial stands; does nothing where it is at the end already."""
    progress, saved = trial.progress, trial.latest.latest()
    if next_work(schedule, progress, stop_requested=progress.stopped) is None:
        return
    number = trial.run.trial_id
    start = trial.run = downloaded(trial_class, trial.run)
    if saved:
        _logger.info("Trial %d goes on after %d batches", number, progress.batches)
        start = _at(start, progress.batches, saved.path)
    with (
        current(start),
        contextlib.closing(trial_class.open_controller(start)) as controller,
        _reporting(start) as report,
    ):
        run(
            controller,
            schedule,
            progress,
            save=functools.partial(_save, trial.latest, controller),
            save_best=functools.partial(_save, trial.best, controller),
            report=report,
        )


def _save(manager: CheckpointManager, controller: Controller, progress: TrialProgress) -> None:
    """Saves in all workers, as strategies want it; what all but the chief write is thrown away."""
    saved = manager.latest()
    is_new = saved is None or saved.step < progress.batches
    if distributed.gather(is_new)[0]:  # a resumed run meets its own checkpoint
        manager.save(progress.batches, controller.save, dataclasses.asdict(progress))
        distributed.barrier("at a checkpoint")  # which all can read now


def _check_seen_by_all(saved: SavedCheckpoint | None, directory: str) -> None:
    connected = distributed.runtime()
    if connected is not None:
        connected.agree(
            "at the start of a trial",
            {"a checkpoint of step": saved and saved.step},
            lambda found: (
                f"The workers do not see the same checkpoints in {directory}: {found}. Expected "
                "the pipeline root to be mounted everywhere under the same path."
            ),
        )


def _at(trial: TrialRun, batches: int, checkpoint_dir: str) -> TrialRun:
    return dataclasses.replace(trial, batches_trained=batches, checkpoint_dir=checkpoint_dir)


def _directory(fn_args: Any, trial: TrialRun, name: str) -> str:
    return os.path.join(fn_args.checkpoint_dir, f"trial-{trial.trial_id}", name)


def _best(finished: list[_KeptTrial], settings: ExperimentSettings) -> _KeptTrial:
    errors = [trial.error for trial in finished if trial.error is not None]
    finished = [trial for trial in finished if trial.error is None]
    if not finished:
        raise errors[-1]
    best = finished[0]
    for trial in finished[1:]:
        value = trial.progress.best
        if value is not None and settings.searcher.is_better(value, best.progress.best):
            best = trial
    return best


def _exported(trial: _KeptTrial) -> TrialRun:
    """Returns the trial at the checkpoint to export: its best one, else its last."""
    for manager in (trial.best, trial.latest):
        saved = manager.latest()
        if saved is not None:
            return _at(trial.run, saved.step, saved.path)
    return trial.run


def _write_record(finished: list[_KeptTrial], best: _KeptTrial, model_run_dir: str) -> None:
    record = [
        {
            "trial_id": trial.run.trial_id,
            "hparams": dict(trial.run.hparams),
            "seed": trial.run.seed,
            "batches": trial.progress.batches,
            "best": trial.progress.best,
            "best_at": trial.progress.best_at,
            "exported": trial is best,
            "error": trial.error and f"{type(trial.error).__name__}: {trial.error}",
            "history": trial.progress.history,
        }
        for trial in finished
    ]
    write_whole(os.path.join(model_run_dir, "trials.json"), json.dumps(record, indent=2))


@contextlib.contextmanager
def _reporting(trial: TrialRun) -> Iterator[Callable[[int, str, Mapping[str, Any]], None]]:
    """Yields a function that writes metrics to the log, and to event files below `log_dir`.

    Where there is none, in all workers but the chief, it does nothing.
    """
    if trial.log_dir is None:
        yield lambda batches, kind, metrics: None
        return
    with contextlib.ExitStack() as stack:
        writers = {
            kind: stack.enter_context(
                contextlib.closing(tf.summary.create_file_writer(f"{trial.log_dir}/{kind}"))
            )
            for kind in ("training", "validation")
        }

        def report(batches: int, kind: str, metrics: Mapping[str, Any]) -> None:
            scalars = {n: float(v) for n, v in metrics.items() if isinstance(v, numbers.Real)}
            shown = ", ".join(f"{name} {value:.6g}" for name, value in scalars.items())
            _logger.info("Trial %d, batch %d, %s: %s", trial.trial_id, batches, kind, shown)
            with writers[kind].as_default(step=batches):
                for name, value in scalars.items():
                    with np.errstate(over="ignore"):  # a loss that explodes is infinite there
                        tf.summary.scalar(name, np.float32(value))
            writers[kind].flush()

        yield report
