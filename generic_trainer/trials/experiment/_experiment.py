"""`Experiment`: an estimator, its data, and when to evaluate."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer import estimator as tf_estimator
from generic_trainer.errors import ConfigurationError
from generic_trainer.training import is_chief

RunConfig = tf_estimator.RunConfig

_logger = logging.getLogger(__name__)


class Experiment:
    """Everything needed to train and evaluate an estimator.

    Source: `tf.contrib.learn.Experiment` of TensorFlow 1, for `tf.estimator` estimators.
    """

    def __init__(
        self,
        estimator: Any,
        train_input_fn: Callable[[], Any],
        eval_input_fn: Callable[[], Any],
        eval_metrics: Any = None,
        train_steps: int | None = None,
        eval_steps: int | None = 100,
        train_monitors: Sequence[Any] | None = None,
        eval_hooks: Sequence[Any] | None = None,
        eval_delay_secs: float = 120,
        continuous_eval_throttle_secs: float = 60,
        min_eval_frequency: int | None = None,
        export_strategies: Any = None,
        train_hooks: Sequence[Any] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Takes what the methods work on.

        Args:
            estimator: a `tf.estimator.Estimator`.
            train_input_fn: returns the training data.
            eval_input_fn: returns the evaluation data.
            eval_metrics: must be None; estimators have their metrics in `eval_metric_ops`.
            train_steps: global step at which training ends; None goes on to the end of the data.
            eval_steps: batches of an evaluation; None means all.
            train_monitors: hooks for training, by their old name.
            eval_hooks: hooks for evaluation.
            eval_delay_secs: seconds that `evaluate` and `continuous_eval` wait at first, for the
                first checkpoint of another process.
            continuous_eval_throttle_secs: least number of seconds between two evaluations.
            min_eval_frequency: global steps between two evaluations in `train_and_evaluate`, which
                happen when a checkpoint is written and so not more often; None or 0 evaluates at
                the end only.
            export_strategies: one or several exporters, such as `estimator.FinalExporter`.
            train_hooks: hooks for training.
            sleep: waits for a number of seconds.

        Raises:
            ConfigurationError: `estimator` is none, or `eval_metrics` is given.
        """
        if not isinstance(estimator, tf_estimator.Estimator):
            raise ConfigurationError(
                f"Experiment takes an Estimator of generic_trainer.estimator, but got {estimator!r}"
            )
        if eval_metrics is not None:
            raise ConfigurationError(
                "Experiment(eval_metrics=...) was for estimators of tf.contrib.learn. Return "
                "eval_metric_ops in the EstimatorSpec, or use estimator.add_metrics(...)."
            )
        self.estimator = estimator
        self.train_steps = train_steps
        self.eval_steps = eval_steps
        self.min_eval_frequency = min_eval_frequency
        if not isinstance(export_strategies, (list, tuple)):
            export_strategies = [] if export_strategies is None else [export_strategies]
        self.export_strategies = list(export_strategies)
        self._train_input_fn = train_input_fn
        self._eval_input_fn = eval_input_fn
        self._train_hooks = [*(train_monitors or ()), *(train_hooks or ())]
        self._eval_hooks = list(eval_hooks or ())
        self._eval_delay_s = eval_delay_secs
        self._throttle_s = continuous_eval_throttle_secs
        self._sleep = sleep

    def extend_train_hooks(self, hooks: Sequence[Any]) -> None:
        """Adds hooks for training."""
        self._train_hooks += hooks

    def train(self, delay_secs: float | None = None) -> Any:
        """Trains up to `train_steps`, after `delay_secs` seconds; returns the estimator."""
        self._sleep(delay_secs or 0)
        return self._train()

    def evaluate(self, delay_secs: float | None = None) -> dict[str, Any]:
        """Evaluates the newest checkpoint once; returns its metrics."""
        self._sleep(self._eval_delay_s if delay_secs is None else delay_secs)
        return self._evaluate()

    def train_and_evaluate(self) -> tuple[dict[str, Any], list[Any]]:
        """Trains, and evaluates every `min_eval_frequency` steps and at the end.

        Returns:
            The last evaluation's metrics, and what each export strategy returned.
        """
        listener = _EvaluateOnCheckpoint(self._evaluate, self.min_eval_frequency or 0)
        self._train(listener)
        step = int(self.estimator.get_variable_value("global_step"))
        metrics = listener.metrics_at(step) or self._evaluate()
        return metrics, self._export(metrics)

    local_run = train_and_evaluate

    def continuous_eval(
        self,
        delay_secs: float | None = None,
        throttle_delay_secs: float | None = None,
        continuous_eval_predicate_fn: Callable[[dict[str, Any] | None], bool] | None = None,
    ) -> dict[str, Any] | None:
        """Evaluates each new checkpoint that another process writes.

        Args:
            delay_secs: seconds to wait at first; by default `eval_delay_secs`.
            throttle_delay_secs: seconds between two looks; by default
                `continuous_eval_throttle_secs`.
            continuous_eval_predicate_fn: is asked with the last metrics, None at first, whether to
                go on; by default until the checkpoint of `train_steps`.

        Returns:
            The last evaluation's metrics.
        """
        self._sleep(self._eval_delay_s if delay_secs is None else delay_secs)
        throttle_s = self._throttle_s if throttle_delay_secs is None else throttle_delay_secs
        metrics: dict[str, Any] | None = None
        seen = None
        go_on = continuous_eval_predicate_fn or self._is_unfinished
        while go_on(metrics):
            newest = self.estimator.latest_checkpoint()
            if newest is None or newest == seen:
                _logger.info("Waiting for a new checkpoint in %s", self.estimator.model_dir)
                self._sleep(throttle_s)
                continue
            metrics, seen = self._evaluate(), newest
            self._export(metrics)
        return metrics

    def run_std_server(self) -> None:
        """Does nothing: whoever started this process has started the servers that it needs."""
        _logger.info("run_std_server: the launcher has started all servers")

    def test(self) -> tuple[dict[str, Any], list[Any]]:
        """Trains and evaluates on one batch each, to see that everything fits together."""
        self.estimator.train(self._train_input_fn, hooks=self._train_hooks, steps=1)
        metrics = self._evaluate(steps=1)
        return metrics, self._export(metrics)

    def _is_unfinished(self, metrics: dict[str, Any] | None) -> bool:
        if metrics is None or self.train_steps is None:
            return True
        return bool(metrics["global_step"] < self.train_steps)

    def _train(self, *listeners: Any) -> Any:
        return self.estimator.train(
            self._train_input_fn,
            hooks=list(self._train_hooks),
            max_steps=self.train_steps,
            saving_listeners=list(listeners),
        )

    def _evaluate(self, steps: int | None = None) -> Any:
        return self.estimator.evaluate(
            self._eval_input_fn,
            steps=self.eval_steps if steps is None else steps,
            hooks=list(self._eval_hooks),
        )

    def _export(self, metrics: dict[str, Any]) -> list[Any]:
        if not is_chief():  # who has evaluated the same
            return []
        return [
            exporter.export(
                self.estimator,
                os.path.join(self.estimator.model_dir, "export", exporter.name),
                self.estimator.latest_checkpoint(),
                metrics,
                is_the_final_export=True,
            )
            for exporter in self.export_strategies
        ]


class _EvaluateOnCheckpoint(tf.compat.v1.train.CheckpointSaverListener):  # type: ignore[misc]
    """Evaluates when a checkpoint is written, at least so many steps after the last time."""

    def __init__(self, evaluate: Callable[[], dict[str, Any]], every_steps: int) -> None:
        self._evaluate_now = evaluate
        self._every_steps = every_steps
        self._step: int | None = None
        self._metrics: dict[str, Any] = {}

    def begin(self) -> None:
        self._step = None

    def after_save(self, session: Any, global_step_value: int) -> None:
        """Evaluates; the first checkpoint, of untrained weights, is passed over."""
        if self._step is None:
            self._step = global_step_value
        elif self._every_steps and global_step_value - self._step >= self._every_steps:
            self._metrics, self._step = self._evaluate_now(), global_step_value

    def metrics_at(self, step: int) -> dict[str, Any]:
        return self._metrics if self._metrics.get("global_step") == step else {}
