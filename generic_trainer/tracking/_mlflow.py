"""MLflow 3: parameters, metrics by step, nested runs for trials, report, model with signature."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import mlflow
import numpy as np
from mlflow.entities import Metric as MlflowMetric
from mlflow.entities import Param
from mlflow.models import Model, ModelSignature
from mlflow.types import Schema, TensorSpec

from generic_trainer.tracking._tracker import Metric, Outcome, Signature, TrackedRun

# What one request may hold, and a value.
_MOST_METRICS, _MOST_PARAMS, _MOST_CHARACTERS = 1000, 100, 6000
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
_Item = TypeVar("_Item")


class MlflowTracker:
    """Tells a run to an MLflow server or store."""

    def start(self, run: TrackedRun) -> None:
        """Makes the run, and the experiment where there is none of this name."""
        if run.uri is not None:
            mlflow.set_tracking_uri(run.uri)
        self._client = mlflow.MlflowClient()
        self._experiment = mlflow.set_experiment(run.experiment).experiment_id
        tags = {**run.tags, "mlflow.source.name": run.tags["module"]}
        self._run = self._create(run.name, tags, run.params)
        self._trials: dict[int, str] = {}

    def log(self, metrics: Sequence[Metric]) -> None:
        """Logs metrics by step; those of a trial to its nested run."""
        for trial in sorted({each.trial for each in metrics}, key=lambda number: number or 0):
            run_id = self._run if trial is None else self._trial(trial)
            values = [
                MlflowMetric(_name(each.name), each.value, int(each.time_s * 1000), each.step)
                for each in metrics
                if each.trial == trial
            ]
            for batch in _batches(values, _MOST_METRICS):
                self._client.log_batch(run_id, metrics=batch)

    def end(self, outcome: Outcome) -> None:
        """Logs what the run came to, its files and its model."""
        for trial in outcome.trials:
            run_id = self._trial(trial.number)
            self._log_params(run_id, trial.params)
            self._client.set_tag(run_id, "exported", trial.exported)
            self._client.set_terminated(run_id, "FAILED" if trial.error else "FINISHED")
            self._trials.pop(trial.number)
        for run_id in self._trials.values():
            self._client.set_terminated(run_id, _STATUS[outcome.status])
        for name, value in outcome.facts.items():
            self._client.log_metric(self._run, name, value)
        if outcome.error:
            self._client.set_tag(self._run, "error", outcome.error[:_MOST_CHARACTERS])
        for path in outcome.files:
            self._client.log_artifact(self._run, path)
        if outcome.model:
            self._log_model(outcome.model, outcome.signature)
        self._client.set_terminated(self._run, _STATUS[outcome.status])

    def _create(self, name: str, tags: Mapping[str, str], params: Mapping[str, Any]) -> str:
        run = self._client.create_run(self._experiment, run_name=name, tags=dict(tags))
        self._log_params(run.info.run_id, params)
        return str(run.info.run_id)

    def _log_params(self, run_id: str, params: Mapping[str, Any]) -> None:
        values = [Param(_name(key), str(value)[:_MOST_CHARACTERS]) for key, value in params.items()]
        for batch in _batches(values, _MOST_PARAMS):
            self._client.log_batch(run_id, params=batch)

    def _trial(self, number: int) -> str:
        if number not in self._trials:
            tags = {"mlflow.parentRunId": self._run}
            self._trials[number] = self._create(f"trial {number}", tags, {})
        return self._trials[number]

    def _log_model(self, model_dir: str, signature: Signature | None) -> None:
        if signature is None:  # no SavedModel: MLflow's flavour of TensorFlow reads nothing else
            self._client.log_artifacts(self._run, model_dir, "model")
            return
        with mlflow.start_run(run_id=self._run):
            Model.log(
                artifact_path=None,
                name="model",
                flavor=_SavedModelFlavor,
                signature=ModelSignature(_schema(signature.inputs), _schema(signature.outputs)),
                model_dir=model_dir,
                key=signature.name,
            )


class _SavedModelFlavor:
    """What `mlflow.tensorflow` writes for a SavedModel, without importing TensorFlow."""

    @staticmethod
    def save_model(
        path: str, mlflow_model: Model, signature: ModelSignature, model_dir: str, key: str
    ) -> None:
        """Writes the model's directory and the file `MLmodel`."""
        shutil.copytree(model_dir, os.path.join(path, "tfmodel"))
        mlflow_model.signature = signature
        mlflow_model.add_flavor(
            "tensorflow",
            saved_model_dir="tfmodel",
            model_type="tf1-estimator",  # its word for what is called by a signature
            meta_graph_tags=["serve"],
            signature_def_key=key,
        )
        mlflow_model.add_flavor("python_function", loader_module="mlflow.tensorflow", env={})
        mlflow_model.save(os.path.join(path, "MLmodel"))


def _schema(tensors: Sequence[tuple[str, str, Sequence[int]]]) -> Schema:
    return Schema(
        [TensorSpec(np.dtype(dtype), tuple(shape), name) for name, dtype, shape in tensors]
    )


def _name(name: str) -> str:
    return re.sub(r"[^\w\-. :/]", "_", name)


def _batches(items: Sequence[_Item], size: int) -> Iterator[list[_Item]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
