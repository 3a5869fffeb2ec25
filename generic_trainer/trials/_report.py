"""What a trial tells while it runs: a line of log and a point for TensorBoard per workload."""

from __future__ import annotations

import logging
import numbers
from collections.abc import Mapping
from typing import Any

from generic_trainer.trials._trial import TrialRun

__all__ = ["Reporter"]

_logger = logging.getLogger(__name__)


class Reporter:
    """Writes metrics to the log and to event files."""

    def __init__(self, trial: TrialRun, log_dir: str) -> None:
        """Opens the event files of "training" and "validation" below `log_dir`."""
        import tensorflow as tf

        self._trial_id = trial.trial_id
        self._writers = {
            kind: tf.summary.create_file_writer(f"{log_dir}/{kind}")
            for kind in ("training", "validation")
        }

    def report(self, batches: int, kind: str, metrics: Mapping[str, Any]) -> None:
        """Reports the metrics of one workload, which ended after `batches`."""
        import tensorflow as tf

        scalars = {n: float(v) for n, v in metrics.items() if isinstance(v, numbers.Real)}
        shown = ", ".join(f"{name} {value:.6g}" for name, value in scalars.items())
        _logger.info("Trial %d, batch %d, %s: %s", self._trial_id, batches, kind, shown)
        with self._writers[kind].as_default(step=batches):
            for name, value in scalars.items():
                tf.summary.scalar(name, value)
        self._writers[kind].flush()

    def close(self) -> None:
        """Closes the event files."""
        for writer in self._writers.values():
            writer.close()
