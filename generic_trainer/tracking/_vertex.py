"""Vertex AI Experiments: an experiment run, and one for each trial."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from google.cloud import aiplatform
from google.cloud.aiplatform import gapic

from generic_trainer.tracking._tracker import Metric, Outcome, TrackedRun

_STATES = {"finished": "COMPLETE", "failed": "FAILED", "killed": "CANCELLED"}


class VertexTracker:
    """Tells a run to Vertex AI.

    Metrics go there by step where the experiment has a TensorBoard; else it keeps the last ones.
    """

    def start(self, run: TrackedRun) -> None:
        """Begins the run."""
        _, project, _, region = str(run.uri).split("/")
        aiplatform.init(project=project, location=region, experiment=_id(run.experiment))
        experiment = aiplatform.Experiment(_id(run.experiment))
        self._has_tensorboard = experiment.get_backing_tensorboard_resource() is not None
        self._experiment, self._name = _id(run.experiment), run.name
        self._runs: dict[int | None, Any] = {}
        self._last: dict[int | None, dict[str, float]] = {}
        self._log_params(None, {**run.params, **run.tags})

    def log(self, metrics: Sequence[Metric]) -> None:
        """Logs metrics; those of a trial to its own run."""
        at: dict[tuple[int | None, int], dict[str, float]] = {}
        for each in metrics:
            at.setdefault((each.trial, each.step), {})[each.name] = each.value
        for (trial, step), values in at.items():
            self._last.setdefault(trial, {}).update(values)
            if self._has_tensorboard:
                self._of(trial).log_time_series_metrics(values, step=step)

    def end(self, outcome: Outcome) -> None:
        """Logs what the run came to; files and models have no place in an experiment."""
        states = {}
        for trial in outcome.trials:
            self._log_params(trial.number, {**trial.params, "exported": str(trial.exported)})
            states[trial.number] = "FAILED" if trial.error else "COMPLETE"
        self._last.setdefault(None, {}).update(outcome.facts)
        for number, values in self._last.items():
            self._of(number).log_metrics({_key(name): value for name, value in values.items()})
        for number, run in self._runs.items():
            state = states.get(number or 0, _STATES[outcome.status])
            run.end_run(state=gapic.Execution.State[state])

    def _log_params(self, trial: int | None, params: Mapping[str, Any]) -> None:
        self._of(trial).log_params({_key(name): value for name, value in params.items()})

    def _of(self, trial: int | None) -> Any:
        if trial not in self._runs:
            name = self._name if trial is None else f"{self._name}-trial-{trial}"
            self._runs[trial] = aiplatform.ExperimentRun.create(
                _id(name), experiment=self._experiment
            )
        return self._runs[trial]


def _id(name: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:120]


def _key(name: str) -> str:
    return name.replace("/", ".")
