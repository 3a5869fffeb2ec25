"""A `run_fn` of a trial class: the experiment, its trials, their checkpoints and their record."""

import contextlib
import copy
import dataclasses
import functools
import json
import logging
import math
import numbers
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer._core.files import copy_tree, delete_tree, gfile, write_whole
from generic_trainer._core.scratch import LOCK_SUFFIX
from generic_trainer.data import count_examples, counting_anew
from generic_trainer.errors import ConfigurationError, TrainingError, WorkerLostError
from generic_trainer.training import CheckpointManager, SavedCheckpoint, distributed, is_chief
from generic_trainer.trials._algorithms import Length
from generic_trainer.trials._cluster_part import ClusterPart
from generic_trainer.trials._config import ExperimentSettings, log_unused, parse_experiment
from generic_trainer.trials._loop import (
    Controller,
    TrialProgress,
    TrialSchedule,
    UnknownMetricError,
    next_work,
    plain,
    run,
)
from generic_trainer.trials._pipeline import Pipeline, experiment_config, in_pipeline, tuned_values
from generic_trainer.trials._search import Search
from generic_trainer.trials._trial import (
    Trial,
    TrialRun,
    chosen_class,
    code_file,
    current,
    downloaded,
)
from generic_trainer.trials.errors import InvalidHP

_logger = logging.getLogger(__name__)


def run_fn_from_trial(trial_class: type[Trial]) -> Callable[[Any], None]:
    """Returns the `run_fn` that runs an experiment with a trial class.

    ::

        run_fn = run_fn_from_trial(MnistTrial)
        GenericTrainer(module_file=..., custom_config={"searcher": ..., "hyperparameters": ...})

    1. The experiment configuration is the component's `custom_config`, or the YAML file that
       ``custom_config={"experiment_config": path}`` names, local or remote. A relative path starts
       at the module, and finds a data file of a package; none is packed beside a plain module.
    2. Values of the component's input `hyperparameters` win over those of the configuration. If
       that has no length, it is `train_args.num_steps`; if it has epochs without
       `records_per_epoch`, an epoch is the examples of `fn_args.train_files`.
    3. Several trials run one after another, or side by side on the launcher's workers, as the
       searcher is configured; see `_algorithms` and `_cluster_part`. The best one is exported,
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
            log_unused(settings, is_job=trial_class.is_script)
            _run(trial_class, settings, fn_args)

    return run_fn


def _settings(config: Mapping[str, Any], pipeline: Pipeline) -> ExperimentSettings:
    """Returns the settings of an experiment; the pipeline supplies missing fields."""
    steps = getattr(pipeline, "train_steps", None)
    settings = parse_experiment(config, steps)
    files = getattr(pipeline, "train_files", None)
    if files and settings.counts_epochs and not settings.records_per_epoch:
        records = count_examples(files)
        _logger.info("records_per_epoch is not given: an epoch is all %d examples", records)
        settings = parse_experiment({**config, "records_per_epoch": records}, steps)
    return settings


def _run(trial_class: type[Trial], settings: ExperimentSettings, fn_args: Any) -> None:
    search = Search(settings, tuned_values(fn_args))
    part = ClusterPart.of_this_worker(settings, search.size)
    if part.number >= part.count:
        _logger.warning("%d trials train side by side: none is left for this worker", part.count)
        return
    # No other run of the same key may delete a checkpoint before it is exported.
    with part.as_cluster(), contextlib.ExitStack() as locks:
        experiment = ExperimentRun(trial_class, settings, fn_args, locks, part)
        experiment.train(search)
        if part.number:
            return
        best = experiment.best()
        if is_chief():
            trials = experiment.trials.values()
            if settings.searcher.metric and len(trials) > 1 and best.progress.best is None:
                _logger.warning(
                    "No trial has a finite %s, so none is the best: trial %d is exported, the "
                    "first that has not failed",
                    settings.searcher.metric,
                    best.run.trial_id,
                )
            records = [{"exported": trial is best, **trial.record()} for trial in trials]
            path = os.path.join(fn_args.model_run_dir, "trials.json")
            write_whole(path, json.dumps(plain(records), indent=2))
        experiment.export(best)


@dataclasses.dataclass
class TrialState:
    """A trial, its checkpoints and its progress.

    Attributes:
        error: the error that it failed with after all restarts.
    """

    run: TrialRun
    latest: CheckpointManager
    best: CheckpointManager
    progress: TrialProgress
    error: str | None = None

    def record(self) -> dict[str, Any]:
        """Returns what `trials.json` says of the trial."""
        sample = {name: getattr(self.run, name) for name in ("trial_id", "hparams", "seed")}
        return {**sample, "error": self.error, **dataclasses.asdict(self.progress)}

    def exported(self) -> TrialRun:
        """Returns the trial at the checkpoint to export: its best one, else its last."""
        saved = self.best.latest() or self.latest.latest()
        return _at(self.run, saved.step, saved.path) if saved else self.run


@dataclasses.dataclass
class ExperimentRun:
    """A running experiment: everything that its trials have in common.

    Attributes:
        locks: what keeps the checkpoints of the trials locked.
        part: of the cluster, that trains here; part 0 exports.
        trials: by number.
    """

    trial_class: type[Trial]
    settings: ExperimentSettings
    fn_args: Any
    locks: contextlib.ExitStack
    part: ClusterPart
    trials: dict[int, TrialState] = dataclasses.field(default_factory=dict)
    _exported: TrialRun | None = dataclasses.field(default=None, init=False)  # the last one

    def train(self, search: Search) -> None:
        """Trains the trials of the part of the cluster; part 0 then has those of all."""
        directory = self.fn_args.checkpoint_dir
        part = self.part
        if part.number and part.written(directory) is not None:
            return
        search.run(self._train, part.number, part.count)
        if part.number:
            self.locks.close()
            if is_chief():  # of the part
                trials = self.trials.items()
                results = [
                    (n, trial.error, dataclasses.asdict(trial.progress)) for n, trial in trials
                ]
                part.write(directory, results)
        elif part.count > 1:
            logs = self.fn_args.model_run_dir
            results = part.results_of_others(directory, logs) if is_chief() else []
            for number, error, progress in distributed.gather(results)[0]:
                self._open(search.trial(number), TrialProgress(**progress)).error = error
            self.trials = dict(sorted(self.trials.items()))

    def best(self) -> TrialState:
        """Returns the best trial that has not failed, or the first where nothing is measured.

        Raises:
            TrainingError: all have failed.
        """
        trials = [*self.trials.values()]
        finished = [trial for trial in trials if trial.error is None]
        if not finished:
            raise TrainingError(
                f"All trials failed, {len(trials)}. The last error: {trials[-1].error}"
            )
        best, *others = finished
        for trial in others:
            value = trial.progress.best
            if value is not None and self.settings.searcher.is_better(value, best.progress.best):
                best = trial
        return best

    def export(self, trial: TrialState, controller: Controller | None = None) -> None:
        """Exports a trial, unless it is what was exported last.

        Args:
            trial: the best one.
            controller: the controller that has trained it. Without one, after a restart or from
                another part of the cluster, the trial is built again.
        """
        exported = trial.exported()
        target = self.fn_args.serving_model_dir
        if exported == self._exported:
            return
        self._exported = None
        delete_tree(target)  # of a trial that was the best before
        with current(exported), counting_anew(), contextlib.ExitStack() as stack:
            if controller is None:
                controller = self.trial_class.open_controller(exported)
                stack.callback(controller.close)
            controller.export(self.fn_args, exported.checkpoint_dir)
        self._exported = exported

    def _open(self, trial: TrialRun, progress: TrialProgress | None = None) -> TrialState:
        """Opens the checkpoints of a trial.

        Its `progress` is how far it was known to be; a checkpoint may be of a later step.
        """
        writes = is_chief()
        if writes:
            log_dir = os.path.join(self.fn_args.model_run_dir, "trials", str(trial.trial_id))
            trial = dataclasses.replace(trial, log_dir=log_dir)
        folder = os.path.join(self.fn_args.checkpoint_dir, f"trial-{trial.trial_id}")
        latest, best = (
            self.locks.enter_context(
                CheckpointManager(os.path.join(folder, name), max_to_keep=count, writes=writes)
            )
            for name, count in (("latest", 2), ("best", 1))
        )
        saved = latest.latest()
        _check_seen_by_all(saved, latest.directory)
        reached = _progress_of(saved, progress)
        if distributed.gather(self._lacks_best(best, reached))[0]:
            self._forget(trial.trial_id, folder)
            reached = TrialProgress()
        opened = self.trials[trial.trial_id] = TrialState(trial, latest, best, reached)
        return opened

    def _lacks_best(self, best: CheckpointManager, progress: TrialProgress) -> bool:
        """Whether the best checkpoint of a trial is damaged or gone; a later one is met again."""
        if progress.best_at is None or self.settings.checkpoint_policy == "none":
            return False
        saved = best.latest()
        return saved is None or saved.step < progress.best_at

    def _forget(self, number: int, folder: str) -> None:
        """Has a trial train from its start: its last state is not the model that it was best with.

        Raises:
            WorkerLostError: another part of the cluster has trained it, and does so in the next
                attempt.
        """
        message = (
            f"The checkpoint of the best state of trial {number} is damaged or gone from {folder}: "
            "the trial trains again"
        )
        # As `Search.run` divides the trials.
        owner = ClusterPart((number - 1) % self.part.count, self.part.count, ())
        is_own = owner.number == self.part.number
        if is_chief():
            # An older best one would pass for the best of the new training.
            for directory in (os.path.join(folder, "latest"), os.path.join(folder, "best")):
                for name in gfile().listdir(directory):
                    if name != LOCK_SUFFIX:
                        delete_tree(os.path.join(directory, name.rstrip("/")))
            if not is_own:
                owner.forget(self.fn_args.checkpoint_dir)
        distributed.barrier("at a trial that trains again")
        if not is_own:
            raise WorkerLostError(f"{message} in the next attempt. Run it again.")
        _logger.warning("%s.", message)

    def _train(self, sample: TrialRun, length: Length) -> float:
        """Trains a trial up to a length; returns its metric, as `Search` takes it.

        Where `max_restarts` is given, a trial that fails goes on so many times from its last
        checkpoint; one of several that fails again, or that raises `InvalidHP`, is left to itself.
        """
        trial = self.trials.get(sample.trial_id) or self._open(sample)
        settings = self.settings
        schedule = TrialSchedule(
            settings, lambda: self.trial_class.global_batch_size(trial.run), length
        )
        known = copy.deepcopy(trial.progress)  # a validation may have come after the checkpoint
        for left in reversed(range(settings.max_restarts + 1)):
            try:
                self._continue(trial, schedule)
                break
            except Exception as error:
                # Other workers wait for one that fails; the launcher starts all of them anew.
                is_invalid = isinstance(error, InvalidHP)  # it would be in each restart
                if (
                    distributed.size() > 1
                    or not (settings.max_restarts or is_invalid)
                    or isinstance(error, UnknownMetricError)
                ):
                    raise
                restarts = 0 if is_invalid else left
                _logger.exception(
                    "Trial %d failed; restarts left: %d", trial.run.trial_id, restarts
                )
                trial.progress = _progress_of(trial.latest.latest(), known)
                if not restarts:
                    if settings.searcher.name == "single":
                        raise
                    trial.error = f"{type(error).__name__}: {error}"
                    break
        history = trial.progress.history
        validated = {entry["batches"]: entry.get("validation") for entry in history}
        # Workers that share a validation all use the metrics of the chief.
        metrics = distributed.gather(validated.get(schedule.max_batches))[0] or {}
        value = metrics.get(settings.searcher.metric)
        if not isinstance(value, numbers.Real) or not math.isfinite(value):
            return math.inf
        return float(value) if settings.searcher.smaller_is_better else -float(value)

    def _continue(self, trial: TrialState, schedule: TrialSchedule) -> None:
        """Trains from the last checkpoint of a trial; does nothing if it is at the end already.

        A trial that is the best so far is exported at once: building it again could build
        something else.
        """
        progress = trial.progress
        saved = trial.latest.latest()
        if next_work(schedule, progress, stop_requested=progress.stopped) is None:
            return
        number = trial.run.trial_id
        _logger.info("Trial %d: %s", number, dict(trial.run.hparams))
        start = trial.run = downloaded(self.trial_class, trial.run)
        if saved:
            _logger.info("Trial %d goes on after %d batches", number, progress.batches)
            start = _at(start, progress.batches, saved.path)
        with (
            current(start),
            counting_anew(),  # a trial reads in the order that it would have alone
            contextlib.closing(self.trial_class.open_controller(start)) as controller,
        ):
            if saved and saved.metadata["validated_at"] != progress.validated_at:
                controller.validate()  # after the checkpoint, and callbacks go by it
            saver = _Saver(controller)
            run(
                controller,
                schedule,
                progress,
                save=functools.partial(saver.save, trial.latest),
                save_best=functools.partial(saver.save, trial.best),
                report=functools.partial(_report, start, {}),
            )
            if self.part.number == 0 and distributed.gather(self.best() is trial)[0]:
                try:
                    self.export(trial, controller)
                except Exception as error:  # another may win; at the end it is raised again
                    if distributed.size() > 1:  # the others may have exported it
                        raise
                    _logger.warning("Trial %d is the best so far, but: %s", number, error)


def _progress_of(saved: SavedCheckpoint | None, known: TrialProgress | None) -> TrialProgress:
    """Returns the progress of a checkpoint, or a copy of that known before if it is as far."""
    if saved and (known is None or saved.step > known.batches):
        return TrialProgress(**saved.metadata)
    return copy.deepcopy(known) or TrialProgress()


@dataclasses.dataclass
class _Saver:
    """Saves each state of a trial once: callbacks may hand over to it what they have collected.

    Attributes:
        last: the last checkpoint; another one of the same step is a copy of it.
    """

    controller: Controller
    last: SavedCheckpoint | None = None

    def save(self, manager: CheckpointManager, progress: TrialProgress) -> None:
        """Saves in all workers, as strategies want it; all but the chief throw theirs away."""
        saved = manager.latest()
        is_new = saved is None or saved.step < progress.batches
        if distributed.gather(is_new)[0]:  # a resumed run meets its own checkpoint
            is_same = self.last is not None and self.last.step == progress.batches
            write = self._copy if is_same else self.controller.save
            self.last = manager.save(progress.batches, write, dataclasses.asdict(progress))
            distributed.barrier("at a checkpoint")  # which all can read now

    def _copy(self, directory: str) -> None:
        if self.last is not None and is_chief():
            copy_tree(self.last.path, directory)


def _check_seen_by_all(saved: SavedCheckpoint | None, directory: str) -> None:
    steps = distributed.gather(saved and saved.step)
    if len({*steps}) > 1:
        raise ConfigurationError(
            f"The workers do not see the same checkpoints in {directory}: the last steps are "
            f"{steps}, by rank. Mount the pipeline root under the same path everywhere."
        )


def _at(trial: TrialRun, batches: int, checkpoint_dir: str) -> TrialRun:
    return dataclasses.replace(trial, batches_trained=batches, checkpoint_dir=checkpoint_dir)


def _report(
    trial: TrialRun,
    writers: dict[str, tf.summary.SummaryWriter],
    batches: int,
    kind: str,
    metrics: Mapping[str, Any],
) -> None:
    """Writes metrics to the log, and to event files below the trial's `log_dir`, if it has one."""
    if trial.log_dir is None:  # in all workers but the chief
        return
    scalars = {n: float(v) for n, v in metrics.items() if isinstance(v, numbers.Real)}
    shown = ", ".join(f"{name} {value:.6g}" for name, value in scalars.items())
    _logger.info("Trial %d, batch %d, %s: %s", trial.trial_id, batches, kind, shown)
    # Code of TensorFlow 1 turns eager execution off, and the TensorBoard callback of Keras decides
    # for the whole process when to write.
    with distributed.eager_mode(), tf.summary.record_if(True):
        if kind not in writers:
            writers[kind] = tf.summary.create_file_writer(os.path.join(trial.log_dir, kind))
        with writers[kind].as_default(batches), np.errstate(over="ignore"):  # infinity is right
            for name, value in scalars.items():
                tf.summary.scalar(name, np.float32(value))
        writers[kind].flush()
