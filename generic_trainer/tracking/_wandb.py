"""Weights & Biases: offline into the ModelRun, or to a server."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import wandb

from generic_trainer.tracking._tracking import Metric, by_step

# TensorBoard's steps may go back, which W&B's own counter does not accept.
_STEP = "tensorboard_step"


class WandbTracker:
    """Sends a run to W&B; `wandb sync DIR` uploads offline runs."""

    def start(self, *, name: str, uri: str | None, experiment: str, directory: str) -> None:
        """Begins the run."""
        settings = {"base_url": uri} if uri else {}
        self._run = wandb.init(
            project=experiment,
            name=name,
            dir=directory,
            mode="online" if uri else "offline",
            reinit="create_new",  # user code may have a run of its own
            settings=wandb.Settings(silent=True, console="off", **settings),
        )
        self._run.define_metric("*", step_metric=_STEP)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Logs the configuration."""
        self._run.config.update(dict(params))

    def log_metrics(self, metrics: Sequence[Metric]) -> None:
        """Logs metrics by step."""
        for step, values in by_step(metrics):
            self._run.log({**values, _STEP: step})

    def log_files(self, paths: Sequence[str]) -> None:
        """Saves files, and logs the model as an artifact."""
        for path in paths:
            if os.path.isdir(path):
                model = wandb.Artifact("model", type="model")
                model.add_dir(path)
                self._run.log_artifact(model)
            else:
                self._run.save(path, base_path=os.path.dirname(path), policy="now")

    def end(self, status: str) -> None:
        """Ends the run."""
        self._run.finish(exit_code=int(status != "finished"))
