"""A `run_fn` out of a trial class."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from generic_trainer._core.files import gfile
from generic_trainer.errors import ConfigurationError
from generic_trainer.training import CheckpointManager
from generic_trainer.trials._config import Experiment, parse_experiment, read_yaml
from generic_trainer.trials._loop import Plan, Progress, run
from generic_trainer.trials._report import Reporter
from generic_trainer.trials._search import trials_of
from generic_trainer.trials._trial import Trial, TrialRun, current

__all__ = ["run_fn_from_trial"]

_CONFIG_KEY = "experiment_config"
_RECORD_FILE = "trials.json"
_RECORD_DIR = "trials"

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _Outcome:
    """How a trial ended, and the checkpoint that stands for it."""

    run: TrialRun
    progress: Progress


def run_fn_from_trial(trial_class: type[Trial]) -> Callable[[Any], None]:
    """Returns the `run_fn` that runs an experiment with a trial class.

    ::

        run_fn = run_fn_from_trial(MnistTrial)
        GenericTrainer(module_file=..., custom_config={"searcher": ..., "hyperparameters": ...})

    1. The experiment configuration is the component's `custom_config`, or the YAML file that
       ``custom_config={"experiment_config": path}`` names, local or remote. A relative path starts
       at the module, and finds a data file of a package; none is packed beside a plain module.
    2. Values of the component's input `hyperparameters` win over what the configuration says.
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
        experiment = parse_experiment(_configuration(fn_args, trial_class))
        runs = trials_of(experiment, _tuned(fn_args))
        outcomes = []
        for number, trial in enumerate(runs, 1):
            _logger.info("Trial %d of %d: %s", number, len(runs), dict(trial.hparams))
            outcomes.append(_finish(trial_class, trial, experiment, fn_args))
        best = _best(outcomes, experiment)
        _write_record(outcomes, best, fn_args.model_run_dir)
        with _opened(trial_class, _exported(best, fn_args)) as controller:
            controller.export(fn_args)

    return run_fn


def _configuration(fn_args: Any, trial_class: type[Trial]) -> Mapping[str, Any]:
    found = dict(fn_args.custom_config or {})
    path = found.get(_CONFIG_KEY)
    if isinstance(path, Mapping):
        return path
    if path is None:
        return found
    module = sys.modules[trial_class.__module__]
    path = os.path.join(os.path.dirname(module.__file__ or ""), path)
    if not gfile().exists(path):
        raise ConfigurationError(f"custom_config names {path} as {_CONFIG_KEY}: there is no file")
    with gfile().GFile(path) as file:
        return read_yaml(file.read())


def _tuned(fn_args: Any) -> Mapping[str, Any]:
    """Returns the values of a `keras_tuner.HyperParameters` config."""
    return dict((fn_args.hyperparameters or {}).get("values") or {})


def _finish(
    trial_class: type[Trial], trial: TrialRun, experiment: Experiment, fn_args: Any
) -> _Outcome:
    """Runs a trial from where it stands to its end."""
    with (
        CheckpointManager(_directory(fn_args, trial, "latest")) as latest,
        CheckpointManager(_directory(fn_args, trial, "best"), max_to_keep=1) as best,
    ):
        saved = latest.latest()
        progress = Progress(**saved.metadata) if saved else Progress()
        if saved:
            _logger.info("Trial %d goes on after %d batches", trial.trial_id, progress.batches)
            trial = _at(trial, progress.batches, saved.path)
        log_dir = os.path.join(fn_args.model_run_dir, _RECORD_DIR, str(trial.trial_id))
        trial = dataclasses.replace(trial, log_dir=log_dir)
        with (
            _opened(trial_class, trial) as controller,
            contextlib.closing(Reporter(trial, log_dir)) as reporter,
        ):

            def save(manager: CheckpointManager) -> Callable[[Progress], None]:
                return lambda progress: _save(manager, progress, controller.save)

            run(
                controller,
                Plan.of(experiment, lambda: trial_class.global_batch_size(trial)),
                progress,
                save=save(latest),
                save_best=save(best),
                report=reporter.report,
            )
    return _Outcome(trial, progress)


def _save(manager: CheckpointManager, progress: Progress, write: Callable[[str], None]) -> None:
    saved = manager.latest()
    if saved is None or saved.step < progress.batches:  # a resumed run meets its own checkpoint
        manager.save(progress.batches, write, dataclasses.asdict(progress))


def _at(trial: TrialRun, batches: int, checkpoint_dir: str) -> TrialRun:
    return dataclasses.replace(trial, batches_trained=batches, checkpoint_dir=checkpoint_dir)


@contextlib.contextmanager
def _opened(trial_class: type[Trial], trial: TrialRun) -> Any:
    with current(trial), contextlib.closing(trial_class.open_controller(trial)) as controller:
        yield controller


def _directory(fn_args: Any, trial: TrialRun, name: str) -> str:
    return os.path.join(fn_args.checkpoint_dir, f"trial-{trial.trial_id}", name)


def _best(outcomes: list[_Outcome], experiment: Experiment) -> _Outcome:
    best = outcomes[0]
    for outcome in outcomes[1:]:
        value = outcome.progress.best
        if value is not None and experiment.searcher.is_better(value, best.progress.best):
            best = outcome
    return best


def _exported(outcome: _Outcome, fn_args: Any) -> TrialRun:
    """Returns the trial at the checkpoint to export: its best one, else its last."""
    for name in ("best", "latest"):
        with CheckpointManager(_directory(fn_args, outcome.run, name)) as manager:
            saved = manager.latest()
        if saved is not None:
            return _at(outcome.run, saved.step, saved.path)
    return outcome.run


def _write_record(outcomes: list[_Outcome], best: _Outcome, model_run_dir: str) -> None:
    record = [
        {
            "trial_id": outcome.run.trial_id,
            "hparams": dict(outcome.run.hparams),
            "seed": outcome.run.seed,
            "batches": outcome.progress.batches,
            "best": outcome.progress.best,
            "best_at": outcome.progress.best_at,
            "exported": outcome is best,
            "history": outcome.progress.history,
        }
        for outcome in outcomes
    ]
    with gfile().GFile(os.path.join(model_run_dir, _RECORD_FILE), "w") as file:
        file.write(json.dumps(record, indent=2))
