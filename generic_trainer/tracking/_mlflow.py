"""MLflow 3: parameters, metrics by step, report, model."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import mlflow
from mlflow.entities import Metric as MlflowMetric
from mlflow.entities import Param

from generic_trainer.tracking._tracking import Metric

# Limits of one request.
_MAX_METRICS = 1000
_MAX_PARAMS = 100
_MAX_CHARACTERS = 6000  # of a value
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}


class MlflowTracker:
    """Sends a run to an MLflow server or store.

    It has no effect on user code in the same process that uses `mlflow` itself.
    """

    def start(self, *, name: str, uri: str | None, experiment: str, directory: str) -> None:
        """Creates the run, and the experiment if it does not exist."""
        self._client = mlflow.MlflowClient(uri)
        self._keys: dict[str, str] = {}  # MLflow's name → ours
        known = self._client.get_experiment_by_name(experiment)
        number = known.experiment_id if known else self._client.create_experiment(experiment)
        self._run = str(self._client.create_run(number, run_name=name).info.run_id)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Logs parameters."""
        values = [
            Param(self._name(key), str(value)[:_MAX_CHARACTERS]) for key, value in params.items()
        ]
        for start in range(0, len(values), _MAX_PARAMS):
            self._client.log_batch(self._run, params=values[start : start + _MAX_PARAMS])

    def log_metrics(self, metrics: Sequence[Metric]) -> None:
        """Logs metrics by step."""
        values = [
            MlflowMetric(self._name(each.name), each.value, int(each.time_s * 1000), each.step)
            for each in metrics
        ]
        for start in range(0, len(values), _MAX_METRICS):
            self._client.log_batch(self._run, metrics=values[start : start + _MAX_METRICS])

    def log_files(self, paths: Sequence[str]) -> None:
        """Logs files as artifacts, and the model as the artifact `model`."""
        for path in paths:
            if os.path.isdir(path):
                self._client.log_artifacts(self._run, path, "model")
            else:
                self._client.log_artifact(self._run, path)

    def end(self, status: str) -> None:
        """Ends the run."""
        self._client.set_terminated(self._run, _STATUS[status])

    def _name(self, key: str) -> str:
        name = _name(key)
        # It refuses another value of a parameter, and makes one curve of two metrics.
        while self._keys.setdefault(name, key) != key:
            name += "_"
        return name


def _name(name: str) -> str:
    """Returns a name that MLflow takes: it refuses other characters, paths and lengths."""
    name = re.sub(r"[^\w\-. :/]", "_", name)
    name = "/".join(part for part in name.split("/") if part.strip("."))
    return name.lstrip("./")[:240].rstrip("/") or "_"
