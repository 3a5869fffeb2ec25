"""Trackers: the protocol, and the plain data that they receive.

An adapter is one class. If a distribution registers it as an entry point of the group
`generic_trainer.trackers`, `Tracking(to="its name")` finds it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from generic_trainer._core.event_files import Scalar as Metric


class Tracker(Protocol):
    """An adapter to a tracking service, for one run; one thread calls its methods.

    An error of theirs ends the tracking and is logged as a warning. `start` is called first and
    `end` last, once each.
    """

    def start(self, *, name: str, uri: str | None, experiment: str, directory: str) -> None:
        """Begins the run.

        Args:
            name: the name of the run.
            uri: the address of the service, as given; None leaves it to the tracker.
            experiment: the experiment to which the run belongs.
            directory: a local directory for files of the tracker itself.
        """

    def log_params(self, params: Mapping[str, bool | float | str]) -> None:
        """Logs names and values that are known once: parameters, and the error of a failed run."""

    def log_metrics(self, metrics: Sequence[Metric]) -> None:
        """Logs values of TensorBoard's scalars, in the order of writing."""

    def log_files(self, paths: Sequence[str]) -> None:
        """Logs local files, such as the report, and the directory of the published model."""

    def end(self, status: str) -> None:
        """Ends the run, which is `"finished"`, `"failed"` or `"killed"`."""


def by_step(metrics: Iterable[Metric]) -> dict[int, dict[str, float]]:
    """Returns step → name and value of its metrics."""
    steps: dict[int, dict[str, float]] = {}
    for metric in metrics:
        steps.setdefault(metric.step, {})[metric.name] = metric.value
    return steps
