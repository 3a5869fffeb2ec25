"""Weights & Biases: offline into the ModelRun, or to a server; a run of its own for each trial."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import wandb

from generic_trainer.tracking._tracker import Metric, Outcome, TrackedRun

# Scalars of TensorBoard come with steps of their own, which W&B's own counter does not take.
_STEP = "tensorboard_step"


class WandbTracker:
    """Tells a run to W&B; `wandb sync DIR` sends what was tracked offline."""

    def start(self, run: TrackedRun) -> None:
        """Begins the run."""
        self._given = run
        self._run = self._init(run.name, {**run.params, **run.tags})
        self._trials: dict[int, Any] = {}

    def log(self, metrics: Sequence[Metric]) -> None:
        """Logs metrics by step; those of a trial to its own run."""
        at: dict[tuple[int | None, int], dict[str, float]] = {}
        for each in metrics:
            at.setdefault((each.trial, each.step), {})[each.name] = each.value
        for (trial, step), values in at.items():
            run = self._run if trial is None else self._trial(trial)
            run.log({**values, _STEP: step})

    def end(self, outcome: Outcome) -> None:
        """Logs what the run came to, its files and its model."""
        failed = int(outcome.status != "finished")
        for trial in outcome.trials:
            run = self._trial(trial.number)
            run.config.update({**trial.params, "exported": trial.exported})
            run.finish(exit_code=int(trial.error is not None))
            self._trials.pop(trial.number)
        for run in self._trials.values():
            run.finish(exit_code=failed)
        self._run.summary.update({**outcome.facts, "error": outcome.error})
        for path in outcome.files:
            self._run.save(path, base_path=os.path.dirname(path), policy="now")
        if outcome.model:
            model = wandb.Artifact("model", type="model")
            model.add_dir(outcome.model)
            self._run.log_artifact(model)
        self._run.finish(exit_code=failed)

    def _trial(self, number: int) -> Any:
        if number not in self._trials:
            self._trials[number] = self._init(f"{self._given.name}, trial {number}", {})
        return self._trials[number]

    def _init(self, name: str, config: Mapping[str, Any]) -> Any:
        settings = {"base_url": self._given.uri} if self._given.uri else {}
        run = wandb.init(
            project=self._given.experiment,
            group=self._given.name,
            name=name,
            config=dict(config),
            dir=self._given.directory,
            mode="online" if self._given.uri else "offline",
            reinit="create_new",  # trials train in turn, and some of them go on later
            settings=wandb.Settings(silent=True, console="off", **settings),
        )
        run.define_metric("*", step_metric=_STEP)
        return run
