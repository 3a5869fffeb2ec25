"""The loop that all trial APIs share: batches, validations and checkpoints in a fixed order.

What comes next follows the trial workload sequencer of Determined 0.13: it depends on nothing but
schedule and progress, so a run that resumes from a checkpoint goes on as the straight run did.
"""

from __future__ import annotations

import dataclasses
import logging
import numbers
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from generic_trainer.trials._config import ExperimentSettings, Length

_logger = logging.getLogger(__name__)


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

    def export(self, fn_args: Any) -> None:
        """Writes the SavedModel into `fn_args.serving_model_dir`."""

    def close(self) -> None:
        """Lets go of the devices."""


@dataclasses.dataclass(frozen=True)
class TrialSchedule:
    """The settings of an experiment, its lengths in batches."""

    settings: ExperimentSettings
    max_batches: int
    validation_period: int | None
    checkpoint_period: int | None

    @classmethod
    def of(
        cls, settings: ExperimentSettings, global_batch_size: Callable[[], int]
    ) -> TrialSchedule:
        """Converts lengths to batches, a period to at least one.

        The batch size is asked only where lengths are not in batches.
        """

        def batches(length: Length) -> int:
            size = 1 if length.unit == "batches" else global_batch_size()
            return length.to_batches(size, settings.records_per_epoch)

        def period(length: Length | None) -> int | None:
            return None if length is None else max(1, batches(length))

        return cls(
            settings,
            batches(settings.searcher.max_length),
            period(settings.min_validation_period),
            period(settings.min_checkpoint_period),
        )


@dataclasses.dataclass
class TrialProgress:
    """How far a trial is; kept with every checkpoint.

    Attributes:
        validated_at: `batches` at the last validation; None before the first.
        checkpointed_at: `batches` at the last checkpoint.
        owes_checkpoint: whether the policy wants one after the last validation.
        best: the best value of the searcher's metric.
        best_at: `batches` when it was reached.
        history: one entry per workload: {"batches", "training" or "validation": metrics}.
    """

    batches: int = 0
    validated_at: int | None = None
    checkpointed_at: int = 0
    owes_checkpoint: bool = False
    best: float | None = None
    best_at: int | None = None
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)


def next_work(
    schedule: TrialSchedule, progress: TrialProgress, *, stop_requested: bool = False
) -> int | Literal["validate", "checkpoint"] | None:
    """Returns what to do next: train so many batches, or the like; None when the trial is over.

    1. The initial validation, where one is asked for.
    2. If the user's code wants to stop: a checkpoint of what was not saved yet, then nothing.
    3. A checkpoint that is owed for the last validation.
    4. At the end of training, a checkpoint and then a validation of the last state.
    5. Before that, a validation, then a checkpoint, whose period is over.
    6. Training, up to whichever comes first: the end, the next validation, the next checkpoint, or
       the scheduling unit.
    """
    unsaved = progress.batches - progress.checkpointed_at
    unvalidated = progress.batches - (progress.validated_at or 0)
    is_new = progress.batches == 0 and progress.validated_at is None
    if is_new and schedule.settings.perform_initial_validation:
        return "validate"
    if stop_requested:
        return "checkpoint" if unsaved else None
    if progress.owes_checkpoint and unsaved:
        return "checkpoint"
    if progress.batches >= schedule.max_batches:
        if unsaved:
            return "checkpoint"
        return None if progress.validated_at == progress.batches else "validate"
    if schedule.validation_period and unvalidated >= schedule.validation_period:
        return "validate"
    if schedule.checkpoint_period and unsaved >= schedule.checkpoint_period:
        return "checkpoint"
    limits = [schedule.max_batches - progress.batches, schedule.settings.scheduling_unit]
    if schedule.validation_period:
        limits.append(schedule.validation_period - unvalidated)
    if schedule.checkpoint_period:
        limits.append(schedule.checkpoint_period - unsaved)
    return max(1, min(limits))


def run(
    controller: Controller,
    schedule: TrialSchedule,
    progress: TrialProgress,
    *,
    save: Callable[[TrialProgress], None],
    save_best: Callable[[TrialProgress], None],
    report: Callable[[int, str, Mapping[str, Any]], None],
) -> None:
    """Brings a trial to its end.

    Args:
        controller: the trial.
        schedule: what to do.
        progress: where it stands; brought up to date.
        save: writes a checkpoint to resume from.
        save_best: keeps the model that is the best so far.
        report: is told (batches, "training" or "validation", metrics) after each workload.
    """

    def record(kind: str, metrics: Mapping[str, Any]) -> None:
        progress.history.append({"batches": progress.batches, kind: dict(metrics)})
        report(progress.batches, kind, metrics)

    while work := next_work(schedule, progress, stop_requested=controller.stop_requested):
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
            progress.checkpointed_at, progress.owes_checkpoint = progress.batches, False
            save(progress)


def _is_best(
    settings: ExperimentSettings, progress: TrialProgress, metrics: Mapping[str, Any]
) -> bool:
    """Whether the last validation is the best so far; the progress takes note of it."""
    metric, is_best = settings.searcher.metric, False
    value = metrics.get(metric) if metric else None
    if isinstance(value, numbers.Real):
        is_best = settings.searcher.is_better(float(value), progress.best)
        if is_best:
            progress.best, progress.best_at = float(value), progress.batches
    elif metric:
        _logger.warning(
            "The searcher's metric %r is not among the validation metrics that are numbers (%s).",
            metric,
            ", ".join(sorted(metrics)) or "none",
        )
    policy = settings.checkpoint_policy
    progress.owes_checkpoint = policy == "all" or (policy == "best" and is_best)
    return is_best
