"""Experiment tracking: sends parameters, metrics and results of runs to MLflow and the like.

::

    GenericTrainer(..., tracking="mlflow:http://mlflow.example:5000")
    GenericTrainer(..., tracking=[Tracking(to="wandb", experiment="penguins"), "mlflow"])

TensorBoard needs no tracker: `run_fn` writes its event files into the ModelRun, from which trackers
get their metrics. Each tracker runs in a thread of the executor; an error of it is logged as one
warning and never fails the run.
"""

from generic_trainer.tracking._tracking import (
    Metric,
    Tracker,
    Tracking,
    parse_trackings,
    track,
    trackings_to_json,
)

__all__ = ["Metric", "Tracker", "Tracking", "parse_trackings", "track", "trackings_to_json"]
