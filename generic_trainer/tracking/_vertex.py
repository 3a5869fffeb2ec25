"""Vertex AI Experiments: an experiment run."""

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from google.cloud import aiplatform
from google.cloud.aiplatform import gapic

from generic_trainer.tracking._tracking import Metric, by_step

_STATES = {"finished": "COMPLETE", "failed": "FAILED", "killed": "CANCELLED"}


class VertexTracker:
    """Sends a run to Vertex AI.

    It gets metrics by step if the experiment has a TensorBoard, and the last values otherwise.
    """

    def start(self, *, name: str, uri: str | None, experiment: str, directory: str) -> None:
        """Begins the run."""
        _, project, _, region = str(uri).split("/")
        experiment = _id(experiment)
        aiplatform.init(project=project, location=region, experiment=experiment)
        board = aiplatform.Experiment(experiment).get_backing_tensorboard_resource()
        self._has_tensorboard = board is not None
        self._last: dict[str, float] = {}
        # Names are unique in an experiment, and runs of other directories have equal names.
        run = f"{_id(name)[:115]}-{secrets.token_hex(4)}"
        self._run = aiplatform.ExperimentRun.create(run, experiment=experiment)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Logs parameters."""
        self._run.log_params({_key(name): value for name, value in params.items()})

    def log_metrics(self, metrics: Sequence[Metric]) -> None:
        """Logs metrics."""
        for step, values in by_step(metrics):
            self._last.update(values)
            if self._has_tensorboard:
                self._run.log_time_series_metrics(values, step=step)

    def log_files(self, paths: Sequence[str]) -> None:
        """Does nothing: experiments do not store files or models."""

    def end(self, status: str) -> None:
        """Logs the last values, and ends the run."""
        try:
            self._run.log_metrics({_key(name): value for name, value in self._last.items()})
        finally:
            self._run.end_run(state=gapic.Execution.State[_STATES[status]])


def _id(name: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:120]


def _key(name: str) -> str:
    return name.replace("/", ".")
