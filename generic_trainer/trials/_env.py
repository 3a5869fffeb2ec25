"""`EnvContext` and `HorovodContext`, which Determined's contexts were made of.

A class of the user's that derives from a context is called with both, and hands them on::

    class MyContext(TFKerasTrialContext):
        def __init__(self, env, hvd_config):
            super().__init__(env, hvd_config)

Source: `determined.EnvContext` and `determined.horovod.HorovodContext` of Determined 0.12 and 0.13.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from generic_trainer.trials._config import ExperimentConfig
from generic_trainer.trials._trial import TrialRun


class EnvContext:
    """A trial and where it runs.

    Attributes:
        run: the trial.
        experiment_config: as the user wrote it.
        hparams: this trial's values.
        trial_seed: of this trial.
        managed_training: whether the harness trains.
        test_mode: whether it trains one batch only.
        det_trial_id: "1", "2", ...; empty outside of an experiment.
        det_experiment_id: "1"; empty outside of an experiment.
    """

    def __init__(
        self,
        *,
        experiment_config: Mapping[str, Any],
        hparams: Mapping[str, Any],
        trial_seed: int = 0,
        managed_training: bool = True,
        det_trial_id: str = "",
        det_experiment_id: str = "",
        **others: Any,
    ) -> None:
        """Takes what the original took, of which `others` say nothing here, but can be asked."""
        self.__dict__.update(others)
        self.experiment_config = ExperimentConfig(experiment_config)
        self.hparams = dict(hparams)
        self.trial_seed = trial_seed
        self.managed_training = managed_training
        self.test_mode = bool(others.get("test_mode"))
        self.det_trial_id, self.det_experiment_id = det_trial_id, det_experiment_id
        self.run = TrialRun(
            trial_id=int(det_trial_id or 1),
            config=self.experiment_config,
            hparams=self.hparams,
            seed=trial_seed,
            slots=self.experiment_config.slots_per_trial(),
        )

    @classmethod
    def of(cls, run: TrialRun, *, managed_training: bool = True) -> EnvContext:
        """Returns that of a trial."""
        env = cls(
            experiment_config=run.config,
            hparams=run.hparams,
            trial_seed=run.seed,
            managed_training=managed_training,
            det_trial_id=str(run.trial_id) if managed_training else "",
            det_experiment_id="1" if managed_training else "",
            latest_checkpoint=run.checkpoint_dir,
        )
        env.run = run
        return env


@dataclasses.dataclass(frozen=True)
class HorovodContext:
    """How the slots of a trial add up gradients: `optimizations` of the configuration.

    Attributes:
        use: whether there are several processes.
        aggregation_frequency: batches whose gradients make one step.
        average_aggregated_gradients: whether these are averaged, or else summed up.
    """

    use: bool = False
    aggregation_frequency: int = 1
    fp16_compression: bool = False
    grad_updates_size_file: str | None = None
    average_aggregated_gradients: bool = True
    average_training_metrics: bool = False

    @classmethod
    def of(cls, run: TrialRun) -> HorovodContext:
        """Returns what the configuration of a trial says."""
        given = run.config.get("optimizations") or {}
        return cls(
            use=run.workers > 1,
            aggregation_frequency=int(given.get("aggregation_frequency") or 1),
            fp16_compression=bool(given.get("gradient_compression")),
            grad_updates_size_file=given.get("grad_updates_size_file"),
            average_aggregated_gradients=given.get("average_aggregated_gradients") is not False,
            average_training_metrics=bool(given.get("average_training_metrics")),
        )
