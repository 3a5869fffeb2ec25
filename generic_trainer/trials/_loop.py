"""The loop that all trial APIs share: batches, validations and checkpoints in a fixed order.

What comes next follows the trial workload sequencer of Determined 0.13: it depends on nothing but
schedule and progress, so a run that resumes from a checkpoint goes on as the straight run did.
"""

import dataclasses
import logging
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import numpy as np

from generic_trainer._core.progress import note
from generic_trainer._core.texts import did_you_mean, is_number
from generic_trainer.errors import ConfigurationError
from generic_trainer.training.distributed import agree_to_stop
from generic_trainer.trials._algorithms import Length
from generic_trainer.trials._config import ExperimentSettings

_logger = logging.getLogger(__name__)


class UnknownMetricError(ConfigurationError):
    """The searcher's metric is not a validation metric of the trial."""


class Controller(Protocol):
    """What an API has to offer to the loop: one trial, built and ready."""

    @property
    def stop_requested(self) -> bool:
        """Whether the user's code has asked to stop early."""

    def train(self, batches: int) -> dict[str, Any]:
        """Trains on the next batches and returns the metrics, averaged over them."""

    def validate(self) -> dict[str, Any]:
        """Returns the metrics of one pass over the validation data."""

    def save(self, directory: str) -> None:
        """Writes what `train` and `validate` depend on into an empty directory."""

    def export(self, fn_args: Any, checkpoint_dir: str | None = None) -> None:
        """Writes the SavedModel into `fn_args.serving_model_dir`.

        Args:
            fn_args: the argument of `run_fn`.
            checkpoint_dir: a checkpoint of this trial, to export in place of the present state.
        """

    def close(self) -> None:
        """Frees the devices."""


TrialController = Controller  # as Determined had it, for annotations


class TrialSchedule:
    """The settings of an experiment, its lengths in batches.

    A period is infinite where the configuration has none, or 0.
    """

    def __init__(
        self,
        settings: ExperimentSettings,
        global_batch_size: Callable[[], int],
        length: Length | None = None,
    ) -> None:
        """Converts lengths, of the configuration or how far the trial goes now.

        The batch size is asked only where one is not in batches.
        """

        def batches(length: Length) -> int:
            size = 1 if length.unit == "batches" else global_batch_size()
            return length.to_batches(size, settings.records_per_epoch)

        def period(length: Length | None) -> float:
            return batches(length) if length and length.count else math.inf

        self.settings = settings
        self.max_batches = batches(length or settings.searcher.max_length)
        self.validation_period = period(settings.min_validation_period)
        self.checkpoint_period = period(settings.min_checkpoint_period)


@dataclasses.dataclass
class TrialProgress:
    """How far a trial is; kept with every checkpoint.

    Attributes:
        validated_at: `batches` at the last validation; None before the first.
        owes_checkpoint: whether the policy wants one after the last validation.
        best: the best value of the searcher's metric.
        stopped: whether the user's code has asked to stop.
        history: one entry per workload: {"batches", "training" or "validation": metrics}.
    """

    batches: int = 0
    validated_at: int | None = None
    checkpointed_at: int = 0
    owes_checkpoint: bool = False
    best: float | None = None
    best_at: int | None = None
    stopped: bool = False
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)


def next_work(
    schedule: TrialSchedule, progress: TrialProgress, *, stop_requested: bool = False
) -> int | Literal["validate", "checkpoint"] | None:
    """Returns what to do next: train so many batches, or the like; None when the trial is over.

    A trial that a killed search had trained longer than this is over, too.

    1. The initial validation, if one is configured.
    2. If the user's code wants to stop: a checkpoint of unsaved progress, then nothing.
    3. A checkpoint that is owed for the last validation.
    4. At the end of training, a checkpoint and then a validation of the last state.
    5. Before that, a validation, then a checkpoint, whose period is over.
    6. Training, up to whichever comes first: the end, the next validation, the next checkpoint, or
       the scheduling unit.
    """
    unsaved = progress.batches - progress.checkpointed_at
    to_checkpoint = schedule.checkpoint_period - unsaved
    to_validation = schedule.validation_period - progress.batches + (progress.validated_at or 0)
    to_end = schedule.max_batches - progress.batches
    is_new = progress.batches == 0 and progress.validated_at is None
    if is_new and schedule.settings.perform_initial_validation:
        return "validate"
    if stop_requested:
        return "checkpoint" if unsaved else None
    if progress.owes_checkpoint and unsaved:
        return "checkpoint"
    if to_end <= 0:
        if unsaved:
            return "checkpoint"
        return None if to_end < 0 or progress.validated_at == progress.batches else "validate"
    if to_validation <= 0:
        return "validate"
    if to_checkpoint <= 0:
        return "checkpoint"
    return int(min(to_end, to_validation, to_checkpoint, schedule.settings.scheduling_unit))


def run(
    controller: Controller,
    schedule: TrialSchedule,
    progress: TrialProgress,
    *,
    save: Callable[[TrialProgress], None],
    save_best: Callable[[TrialProgress], None],
    report: Callable[[int, str, Mapping[str, Any]], None],
) -> None:
    """Brings a trial to its end, and its progress up to date.

    `save` writes a checkpoint to resume from, `save_best` keeps the model that is the best so far,
    and `report` takes (batches, "training" or "validation", metrics) after each workload.
    """

    def record(kind: str, metrics: Mapping[str, Any]) -> None:
        values = plain(metrics)
        progress.history.append({"batches": progress.batches, kind: values})
        report(progress.batches, kind, metrics)
        prefix = "" if kind == "training" else "validation_"
        numbers_of = {
            f"{prefix}{name}": value for name, value in values.items() if is_number(value)
        }
        note(step=progress.batches, steps=schedule.max_batches, metrics=numbers_of)

    def next_one() -> int | str | None:
        progress.stopped = agree_to_stop(controller.stop_requested or progress.stopped)
        return next_work(schedule, progress, stop_requested=progress.stopped)

    while work := next_one():
        if isinstance(work, int):
            metrics = controller.train(work)
            progress.batches += work
            record("training", metrics)
        elif work == "validate":
            metrics = controller.validate()
            progress.validated_at = progress.batches
            record("validation", metrics)
            is_best = _is_best(schedule.settings, progress, metrics)
            if is_best and schedule.settings.checkpoint_policy != "none":
                save_best(progress)
        else:
            progress.checkpointed_at = progress.batches
            progress.owes_checkpoint = False
            save(progress)


def _is_best(
    settings: ExperimentSettings, progress: TrialProgress, metrics: Mapping[str, Any]
) -> bool:
    """Whether the last validation is the best so far; the progress takes note of it."""
    metric = settings.searcher.metric
    is_best = False
    value = metrics.get(metric) if metric else None
    if isinstance(value, numbers.Real):
        is_best = settings.searcher.is_better(float(value), progress.best)
        if is_best:
            progress.best = float(value)
            progress.best_at = progress.batches
        elif not math.isfinite(value):
            _logger.warning("%s is %s after %d batches", metric, value, progress.batches)
    elif metric:
        names = sorted(name for name, number in metrics.items() if isinstance(number, numbers.Real))
        raise UnknownMetricError(
            "searcher.metric must name a validation metric that is a number "
            f"({', '.join(names) or 'there is none'}), got {metric!r}{did_you_mean(metric, names)}"
        )
    policy = settings.checkpoint_policy
    progress.owes_checkpoint = policy == "all" or (policy == "best" and is_best)
    return is_best


def plain(value: Any) -> Any:
    """Returns what JSON can hold: NumPy's values as Python's, NaN and infinity as strings."""
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return "NaN"
        return "Infinity" if value > 0 else "-Infinity"
    return value
