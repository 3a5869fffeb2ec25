"""Experiment tracking: what a run was given and came to, told to MLflow and services like it.

::

    GenericTrainer(..., tracking="mlflow:http://mlflow.example:5000")
    GenericTrainer(..., tracking=[Tracking(to="wandb", experiment="penguins"), "mlflow"])

TensorBoard needs none of this: `run_fn` writes its event files into the ModelRun, and the metrics
that a tracker is told are read from there. A tracker runs in a process of its own, which imports no
TensorFlow; whatever happens to it, the run goes on, with one warning.
"""

from typing import TYPE_CHECKING

from generic_trainer._core.lazy import lazy_names

if TYPE_CHECKING:
    from generic_trainer.tracking._follow import track
    from generic_trainer.tracking._tracker import (
        Metric,
        Outcome,
        Signature,
        TrackedRun,
        TrackedTrial,
        Tracker,
    )
    from generic_trainer.tracking._tracking import Tracking, parse_trackings, trackings_to_json

__all__ = [
    "Metric",
    "Outcome",
    "Signature",
    "TrackedRun",
    "TrackedTrial",
    "Tracker",
    "Tracking",
    "parse_trackings",
    "track",
    "trackings_to_json",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_follow": "track",
        "_tracker": "Metric Outcome Signature TrackedRun TrackedTrial Tracker",
        "_tracking": "Tracking parse_trackings trackings_to_json",
    },
)
