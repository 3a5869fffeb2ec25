"""A trial that is kept: its checkpoints, how far it is, and how it trains on from there."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import numbers
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer.errors import ConfigurationError
from generic_trainer.training import CheckpointManager, SavedCheckpoint, distributed, is_chief
from generic_trainer.trials._config import ExperimentSettings
from generic_trainer.trials._loop import Controller, TrialProgress, TrialSchedule, next_work, run
from generic_trainer.trials._search import Stretch
from generic_trainer.trials._trial import Trial, TrialRun, current, downloaded

# They train each of their trials to the end, whatever comes out of it.
_WITHOUT_METRIC = ("single", "random", "grid")

_logger = logging.getLogger(__name__)


@dataclasses.dataclass
class KeptTrial:
    """A trial, its checkpoints and how far it is.

    Attributes:
        error: what it failed with, for good.
    """

    run: TrialRun
    latest: CheckpointManager
    best: CheckpointManager
    progress: TrialProgress
    error: str | None = None

    def exported(self) -> TrialRun:
        """Returns the trial at the checkpoint to export: its best one, else its last."""
        for manager in (self.best, self.latest):
            saved = manager.latest()
            if saved is not None:
                return _at(self.run, saved.step, saved.path)
        return self.run


@dataclasses.dataclass(frozen=True)
class ExperimentRun:
    """An experiment that runs: what all of its trials have in common.

    Attributes:
        base_model: the SavedModel that they start from; None where each starts with its own.
    """

    trial_class: type[Trial]
    settings: ExperimentSettings
    fn_args: Any
    base_model: str | None

    def open(
        self,
        trial: TrialRun,
        locks: contextlib.ExitStack,
        progress: TrialProgress | None = None,
    ) -> KeptTrial:
        """Opens the checkpoints of a trial, whose locks are kept as long as `locks` are.

        Its `progress` is how far it was known to be; a checkpoint may be of a later step.
        """
        trial, writes = dataclasses.replace(trial, base_model=self.base_model), is_chief()
        if writes:
            log_dir = os.path.join(self.fn_args.model_run_dir, "trials", str(trial.trial_id))
            trial = dataclasses.replace(trial, log_dir=log_dir)
        latest, best = (
            locks.enter_context(
                CheckpointManager(
                    self._directory(trial.trial_id, name), max_to_keep=count, writes=writes
                )
            )
            for name, count in (("latest", 2), ("best", 1))
        )
        saved = latest.latest()
        _check_seen_by_all(saved, latest.directory)
        if saved is None and trial.parent is not None:
            with CheckpointManager(self._directory(trial.parent, "latest"), writes=False) as other:
                copied = other.latest()
            trial = _at(trial, 0, copied.path) if copied else trial
        if progress is None or (saved is not None and saved.step > progress.batches):
            progress = _progress_of(saved)
        return KeptTrial(trial, latest, best, progress)

    def train(self, trial: KeptTrial, stretch: Stretch) -> float:
        """Brings a trial to the end of a stretch; returns its metric, as `Search.ended` takes it.

        Where `max_restarts` is given, a trial that fails goes on so many times from its last
        checkpoint; one of several that fails again is left to itself.
        """
        settings = self.settings
        schedule = TrialSchedule(
            settings, lambda: self.trial_class.global_batch_size(trial.run), stretch.length
        )
        restarts = int(settings.raw.get("max_restarts") or 0)
        for left in reversed(range(restarts + 1)):
            try:
                _continue(self.trial_class, trial, schedule)
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
                    trial.error = f"{type(error).__name__}: {error}"
        at_end = [
            entry["validation"]
            for entry in trial.progress.history
            if "validation" in entry and entry["batches"] == schedule.max_batches
        ]
        # Of workers that share a validation, all are told what the chief has found.
        metrics = distributed.gather(at_end[-1] if at_end else None)[0]
        value = (metrics or {}).get(settings.searcher.metric)
        if metrics is not None and not isinstance(value, numbers.Real):
            _check_not_needed(settings, metrics)
        if not isinstance(value, numbers.Real) or not math.isfinite(value):
            return math.inf
        return float(value) if settings.searcher.smaller_is_better else -float(value)

    def _directory(self, trial_id: int, name: str) -> str:
        return os.path.join(self.fn_args.checkpoint_dir, f"trial-{trial_id}", name)


def _continue(trial_class: type[Trial], trial: KeptTrial, schedule: TrialSchedule) -> None:
    """Trains from where a trial stands; does nothing where it is at the end already."""
    progress, saved = trial.progress, trial.latest.latest()
    if next_work(schedule, progress, stop_requested=progress.stopped) is None:
        return
    number = trial.run.trial_id
    _logger.info("Trial %d: %s", number, dict(trial.run.hparams))
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


def _check_not_needed(settings: ExperimentSettings, metrics: Mapping[str, Any]) -> None:
    """Raises `ConfigurationError` where the search cannot do without the metric that is missing."""
    searcher = settings.searcher
    if searcher.name in _WITHOUT_METRIC:
        return
    raise ConfigurationError(
        f"searcher.metric: {searcher.name} decides by it which trials train on. Expected one of "
        f"the validation metrics that are numbers ({', '.join(sorted(metrics)) or 'none'}), found "
        f"{searcher.metric!r}."
    )


def _progress_of(saved: SavedCheckpoint | None) -> TrialProgress:
    return TrialProgress(**saved.metadata) if saved else TrialProgress()


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


@contextlib.contextmanager
def _reporting(trial: TrialRun) -> Iterator[Callable[[int, str, Mapping[str, Any]], None]]:
    """Yields a function that writes metrics to the log, and to event files below `log_dir`.

    Where there is none, in all workers but the chief, it does nothing.
    """
    if trial.log_dir is None:
        yield lambda batches, kind, metrics: None
        return
    with distributed.eager_mode():  # code of TensorFlow 1 turns it off
        writers = {
            kind: tf.summary.create_file_writer(f"{trial.log_dir}/{kind}")
            for kind in ("training", "validation")
        }

    def report(batches: int, kind: str, metrics: Mapping[str, Any]) -> None:
        scalars = {n: float(v) for n, v in metrics.items() if isinstance(v, numbers.Real)}
        shown = ", ".join(f"{name} {value:.6g}" for name, value in scalars.items())
        _logger.info("Trial %d, batch %d, %s: %s", trial.trial_id, batches, kind, shown)
        # Keras' own TensorBoard says for all that is written when it is to be written.
        with (
            distributed.eager_mode(),
            tf.summary.record_if(True),
            writers[kind].as_default(step=batches),
            np.errstate(over="ignore"),  # a loss that explodes is infinite there
        ):
            for name, value in scalars.items():
                tf.summary.scalar(name, np.float32(value))
            writers[kind].flush()

    yield report
