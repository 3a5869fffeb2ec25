"""A `run_fn` out of a trial class."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import numbers
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from generic_trainer._core.files import write_whole
from generic_trainer.errors import ConfigurationError
from generic_trainer.training import CheckpointManager, SavedCheckpoint, distributed, is_chief
from generic_trainer.trials._config import ExperimentSettings, Length, parse_experiment
from generic_trainer.trials._fields import log_unused
from generic_trainer.trials._loop import Controller, TrialProgress, TrialSchedule, run
from generic_trainer.trials._pipeline import (
    Pipeline,
    experiment_config,
    in_pipeline,
    tuned_values,
)
from generic_trainer.trials._process import code_file
from generic_trainer.trials._trial import Trial, TrialRun, current, trials_of

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _FinishedTrial:
    """A trial at its end."""

    run: TrialRun
    progress: TrialProgress


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
    3. Several trials run one after another. The best one by the searcher's metric is exported, from
       its best checkpoint; without a metric it is the last state.
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

    def run_fn(fn_args: Any) -> None:
        with in_pipeline(fn_args) as pipeline:
            config = experiment_config(fn_args, code_file(trial_class.__module__))
            settings = _settings(config, pipeline)
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
    runs = trials_of(settings, tuned_values(fn_args))
    finished = []
    # No other run of the same key may delete a checkpoint before it is exported.
    with contextlib.ExitStack() as locks:
        for number, trial in enumerate(runs, 1):
            _logger.info("Trial %d of %d: %s", number, len(runs), dict(trial.hparams))
            finished.append(_finish(trial_class, trial, settings, fn_args, locks))
        best = _best(finished, settings)
        if is_chief():
            _write_record(finished, best, fn_args.model_run_dir)
        trial = _exported(best, fn_args)
        with (
            current(trial),
            contextlib.closing(trial_class.open_controller(trial)) as controller,
        ):
            controller.export(fn_args)


def _finish(
    trial_class: type[Trial],
    trial: TrialRun,
    settings: ExperimentSettings,
    fn_args: Any,
    locks: contextlib.ExitStack,
) -> _FinishedTrial:
    """Runs a trial from where it stands to its end; `locks` are those of its checkpoints."""
    writes = is_chief()
    latest = locks.enter_context(
        CheckpointManager(_directory(fn_args, trial, "latest"), writes=writes)
    )
    best = locks.enter_context(
        CheckpointManager(_directory(fn_args, trial, "best"), max_to_keep=1, writes=writes)
    )
    saved = latest.latest()
    _check_seen_by_all(saved, latest.directory)
    progress = TrialProgress(**saved.metadata) if saved else TrialProgress()
    if saved:
        _logger.info("Trial %d goes on after %d batches", trial.trial_id, progress.batches)
        trial = _at(trial, progress.batches, saved.path)
    if writes:
        log_dir = os.path.join(fn_args.model_run_dir, "trials", str(trial.trial_id))
        trial = dataclasses.replace(trial, log_dir=log_dir)
    with (
        current(trial),
        contextlib.closing(trial_class.open_controller(trial)) as controller,
        _reporting(trial) as report,
    ):
        run(
            controller,
            TrialSchedule(settings, lambda: trial_class.global_batch_size(trial)),
            progress,
            save=functools.partial(_save, latest, controller),
            save_best=functools.partial(_save, best, controller),
            report=report,
        )
    return _FinishedTrial(trial, progress)


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


def _best(finished: list[_FinishedTrial], settings: ExperimentSettings) -> _FinishedTrial:
    best = finished[0]
    for trial in finished[1:]:
        value = trial.progress.best
        if value is not None and settings.searcher.is_better(value, best.progress.best):
            best = trial
    return best


def _exported(trial: _FinishedTrial, fn_args: Any) -> TrialRun:
    """Returns the trial at the checkpoint to export: its best one, else its last."""
    for name in ("best", "latest"):
        saved = CheckpointManager(_directory(fn_args, trial.run, name), writes=False).latest()
        if saved is not None:
            return _at(trial.run, saved.step, saved.path)
    return trial.run


def _write_record(finished: list[_FinishedTrial], best: _FinishedTrial, model_run_dir: str) -> None:
    record = [
        {
            "trial_id": trial.run.trial_id,
            "hparams": dict(trial.run.hparams),
            "seed": trial.run.seed,
            "batches": trial.progress.batches,
            "best": trial.progress.best,
            "best_at": trial.progress.best_at,
            "exported": trial is best,
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
                    tf.summary.scalar(name, value)
            writers[kind].flush()

        yield report
