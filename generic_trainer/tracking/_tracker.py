"""Trackers: the protocol, and the plain data that they are told.

An adapter is one class. Register it as an entry point of the group `generic_trainer.trackers`, and
`Tracking(to="its name")` finds it, in whatever distribution it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class TrackedRun:
    """A run as it begins.

    Attributes:
        name: what it is called.
        uri: where it is tracked, as given; None leaves it to the tracker.
        experiment: what it belongs to.
        params: what decides its outcome, flat: `train_steps`, `custom_config.rate`, ...
        tags: what identifies it: `run_key`, `module_hash`, `model_run`, ...
        directory: a local one, for what the tracker itself leaves.
    """

    name: str
    uri: str | None
    experiment: str
    params: Mapping[str, bool | float | str]
    tags: Mapping[str, str]
    directory: str


@dataclasses.dataclass(frozen=True)
class Metric:
    """A value of a scalar, as TensorBoard has it.

    Attributes:
        name: such as `train/epoch_loss`.
        value: which may be infinite or NaN.
        step: at which it was written.
        time_s: when it was written, in seconds since the epoch.
        trial: number of the trial that it is of; None for one of the run itself.
    """

    name: str
    value: float
    step: int
    time_s: float
    trial: int | None = None


@dataclasses.dataclass(frozen=True)
class TrackedTrial:
    """A trial of the run's experiment, when it is over.

    Attributes:
        number: from 1 on.
        params: its hyperparameters, flat.
        error: what it failed with.
        exported: whether the published model is of this one.
    """

    number: int
    params: Mapping[str, bool | float | str]
    error: str | None
    exported: bool


@dataclasses.dataclass(frozen=True)
class Signature:
    """The signature that a model is called by.

    Attributes:
        name: such as `serving_default`.
        inputs: (name, dtype as NumPy calls it, shape with -1 for any) of each input.
        outputs: the same of each output.
    """

    name: str
    inputs: Sequence[tuple[str, str, Sequence[int]]]
    outputs: Sequence[tuple[str, str, Sequence[int]]]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A run as it has ended.

    Attributes:
        status: `"finished"`, `"failed"` or `"killed"`.
        error: what it failed with.
        facts: numbers that were measured, such as `size_bytes` and `latency_ms`.
        files: local paths of the report and the log.
        model: local directory of the published model, where there is one and the tracker gets it.
        signature: of the published model; None where it is no SavedModel.
        trials: of its experiment.
    """

    status: str
    error: str | None = None
    facts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    files: Sequence[str] = ()
    model: str | None = None
    signature: Signature | None = None
    trials: Sequence[TrackedTrial] = ()


class Tracker(Protocol):
    """An adapter to a tracking service; its methods are called in this order, in one thread.

    Whatever they raise ends the tracking, and is a warning in the run. `start`, once; `log`, with
    some metrics, as often as there are new ones; `end`, once.
    """

    def start(self, run: TrackedRun) -> None:
        """Begins the run."""

    def log(self, metrics: Sequence[Metric]) -> None:
        """Notes metrics, in the order in which they were written."""

    def end(self, outcome: Outcome) -> None:
        """Ends the run."""
