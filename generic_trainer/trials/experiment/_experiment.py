"""`Experiment`: an estimator, its data, and when to evaluate."""

import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from generic_trainer import estimator as tf_estimator
from generic_trainer._core.files import is_remote
from generic_trainer.errors import ConfigurationError
from generic_trainer.training import is_chief
from generic_trainer.trials.experiment._learn import taken, with_metrics

Metrics = dict[str, Any]

# Where checkpoints are remote, evaluating each of them is slow.
_REMOTE_EVAL_STEPS = 1000
# Global steps that the second worker waits for, and the others longer: times the logarithm.
_STEPS_OF_DELAY = 8000
_SECONDS_OF_DELAY = 5
_LONGEST_DELAY_S = 60
_ITERATIONS = 10
_STEPS_WITHOUT_END = 10_000

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class Experiment:
    """Everything needed to train and evaluate an estimator, in the order of the original.

    Attributes:
        estimator: a `tf.estimator.Estimator`.
        train_input_fn: returns the training data.
        eval_input_fn: returns the evaluation data.
        eval_metrics: name, or (name, prediction's key) → `MetricSpec` or its `metric_fn`: what an
            evaluation reports beside the estimator's own metrics.
        train_steps: global step at which training ends; None goes on to the end of the data.
        eval_steps: batches of an evaluation; None means all.
        train_monitors: hooks for training.
        eval_hooks: hooks for evaluation.
        local_eval_frequency: `min_eval_frequency` of `local_run`, which evaluates at the end only
            where it is None.
        eval_delay_secs: seconds that `evaluate` and `continuous_eval` wait at first, for the first
            checkpoint of another process.
        continuous_eval_throttle_secs: least number of seconds between two evaluations.
        min_eval_frequency: least number of global steps between two evaluations in
            `train_and_evaluate`, which happen when a checkpoint is written; 0 evaluates at the end
            only; None is 1, or 1000 where checkpoints are remote.
        delay_workers_by_global_step: whether workers that train asynchronously start one after
            another by the global step, rather than by time.
        export_strategies: one or several exporters, such as `estimator.FinalExporter`, or
            strategies of `make_export_strategy`.
        train_steps_per_iteration: batches between two evaluations of `continuous_train_and_eval`;
            by default a tenth of `train_steps`, or 1000.
        checkpoint_and_export: whether `train_and_evaluate` evaluates and exports each checkpoint,
            whatever `min_eval_frequency` is.
        saving_listeners: `CheckpointSaverListener`s of the training.
        check_interval_secs: least number of seconds between two evaluations in
            `train_and_evaluate`. (Where the original looked for checkpoints every 5 s, none has to
            be looked for here.)
        train_hooks: more hooks for training.
        sleep: waits for a number of seconds.

    Raises:
        ConfigurationError: `estimator` is none.

    Source: `tf.contrib.learn.Experiment` of TensorFlow 1.15, for `tf.estimator` estimators.
    """

    estimator: Any
    train_input_fn: Callable[[], Any]
    eval_input_fn: Callable[[], Any]
    eval_metrics: Mapping[Any, Any] | None = None
    train_steps: int | None = None
    eval_steps: int | None = 100
    train_monitors: Sequence[Any] | None = None
    eval_hooks: Sequence[Any] | None = None
    local_eval_frequency: int | None = None
    eval_delay_secs: float = 120
    continuous_eval_throttle_secs: float = 60
    min_eval_frequency: int | None = None
    delay_workers_by_global_step: bool = False
    export_strategies: Any = None
    train_steps_per_iteration: int | None = None
    checkpoint_and_export: bool = False
    saving_listeners: Sequence[Any] | None = None
    check_interval_secs: float = 0
    _: dataclasses.KW_ONLY
    train_hooks: Sequence[Any] | None = None
    sleep: Callable[[float], None] = time.sleep
    # The checkpoint of the last evaluation: another process may write the next one meanwhile.
    _evaluated: str | None = dataclasses.field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.estimator, tf_estimator.v1.Estimator):
            raise ConfigurationError(
                "Experiment takes an Estimator of generic_trainer.estimator, but got "
                f"{self.estimator!r}"
            )
        if self.eval_metrics:
            self.estimator = with_metrics(self.estimator, self.eval_metrics)
        if self.min_eval_frequency is None:
            is_slow = is_remote(self.estimator.model_dir)
            self.min_eval_frequency = _REMOTE_EVAL_STEPS if is_slow else 1
        self.reset_export_strategies(self.export_strategies)
        self.train_hooks = [*(self.train_monitors or ()), *(self.train_hooks or ())]

    def extend_train_hooks(self, additional_hooks: Sequence[Any]) -> None:
        """Adds hooks for training."""
        self.train_hooks = [*(self.train_hooks or ()), *additional_hooks]

    def reset_export_strategies(self, new_export_strategies: Any = None) -> list[Any]:
        """Takes other export strategies, one or several; returns those before."""
        before: list[Any] = self.export_strategies
        is_list = isinstance(new_export_strategies, list)
        several = new_export_strategies if is_list else [new_export_strategies]
        self.export_strategies = [strategy for strategy in several if strategy is not None]
        return before

    def train(self, delay_secs: float | None = None) -> Any:
        """Trains up to `train_steps`; returns the estimator.

        Args:
            delay_secs: seconds to wait at first; by default 5 for each worker of lower number that
                trains asynchronously, and 60 at most.
        """
        hooks = []
        number = self.estimator.config.task_id or 0
        if delay_secs is None and self.delay_workers_by_global_step:
            steps = int(_STEPS_OF_DELAY * math.log(number + 1))
            hooks = [tf_estimator.GlobalStepWaiterHook(steps)]
        elif delay_secs is None:
            delay_secs = min(_LONGEST_DELAY_S, _SECONDS_OF_DELAY * number)
        self.sleep(delay_secs or 0)
        return self._train(hooks, max_steps=self.train_steps)

    def evaluate(self, delay_secs: float | None = None, name: str | None = None) -> Metrics:
        """Evaluates the newest checkpoint once, after `delay_secs` seconds; returns its metrics."""
        self.sleep(self.eval_delay_secs if delay_secs is None else delay_secs)
        return self._evaluate(name)

    def train_and_evaluate(self) -> tuple[Metrics, list[Any]]:
        """Trains, and evaluates every `min_eval_frequency` steps and at the end.

        Returns:
            The last evaluation's metrics, and what each export strategy returned.
        """
        return self._train_and_evaluate(self.min_eval_frequency or 0)

    def local_run(self) -> tuple[Metrics, list[Any]]:
        """Trains and evaluates every `local_eval_frequency` steps; see `train_and_evaluate`."""
        return self._train_and_evaluate(self.local_eval_frequency or 0)

    def continuous_train_and_eval(
        self, continuous_eval_predicate_fn: Callable[..., bool] | None = None
    ) -> tuple[Metrics | None, list[Any] | None]:
        """Trains `train_steps_per_iteration` batches, evaluates and exports, and so on.

        Unlike `train_and_evaluate` it holds either a training or an evaluation in memory; the
        training data start anew each time.

        Args:
            continuous_eval_predicate_fn: see `continuous_eval`.

        Returns:
            The last evaluation's metrics, and what each export strategy returned.
        """
        steps = max(1, (self.train_steps or _STEPS_WITHOUT_END) // _ITERATIONS)
        metrics = None
        exported = None
        while self._goes_on(metrics, continuous_eval_predicate_fn):
            self._train(steps=self.train_steps_per_iteration or steps)
            metrics = self._evaluate("one_pass")
            exported = self._export(metrics)
        return metrics, exported

    def continuous_eval(
        self,
        delay_secs: float | None = None,
        throttle_delay_secs: float | None = None,
        evaluate_checkpoint_only_once: bool = True,
        continuous_eval_predicate_fn: Callable[..., bool] | None = None,
        export: bool = True,
        *,
        name: str = "continuous",
        input_fn: Callable[[], Any] | None = None,
    ) -> Metrics | None:
        """Evaluates each new checkpoint that another process writes, to that of `train_steps`.

        Args:
            delay_secs: seconds to wait at first; by default `eval_delay_secs`.
            throttle_delay_secs: seconds between two looks; by default
                `continuous_eval_throttle_secs`.
            evaluate_checkpoint_only_once: whether to wait for a new checkpoint.
            continuous_eval_predicate_fn: is asked with the last metrics, None at first, and with
                their `checkpoint_path` if it takes that, whether to go on.
            export: whether to call the export strategies.
            name: of the evaluations' folder, `eval_<name>`.
            input_fn: other data than the Experiment's.

        Returns:
            The last evaluation's metrics.
        """
        self.sleep(self.eval_delay_secs if delay_secs is None else delay_secs)
        throttle_s = throttle_delay_secs
        if throttle_s is None:
            throttle_s = self.continuous_eval_throttle_secs
        metrics = None
        seen = None
        pause_s = 0.0
        while self._goes_on(metrics, continuous_eval_predicate_fn):
            if pause_s > 0:
                self.sleep(pause_s)
            began = time.monotonic()
            newest = self.estimator.latest_checkpoint()
            if newest is None or (evaluate_checkpoint_only_once and newest == seen):
                _logger.info("Waiting for a new checkpoint in %s", self.estimator.model_dir)
                pause_s = throttle_s
                continue
            metrics = self._evaluate(name, input_fn=input_fn or self.eval_input_fn)
            seen = self._evaluated
            if export:
                self._export(metrics)
            pause_s = throttle_s - (time.monotonic() - began)
        return metrics

    def continuous_eval_on_train_data(self, **options: Any) -> Metrics | None:
        """Evaluates each new checkpoint on the training data; see `continuous_eval`."""
        options["input_fn"] = self.train_input_fn
        return self.continuous_eval(name="continuous_on_train_data", **options)

    def run_std_server(self) -> None:
        """Does nothing: whoever started this process has started the servers that it needs."""
        _logger.info("run_std_server: the launcher has started all servers")

    def test(self) -> Metrics:
        """Trains, evaluates and exports on one batch each, to see that everything fits together."""
        self._train(steps=1)
        metrics = self._evaluate("one_pass", steps=1)
        self._export(metrics)
        return metrics

    def _train_and_evaluate(self, every_steps: int) -> tuple[Metrics, list[Any]]:
        def evaluate() -> tuple[Metrics, list[Any]]:
            metrics = self._evaluate()
            return metrics, self._export(metrics) if self.checkpoint_and_export else []

        listener = _EvaluateOnCheckpoint(
            evaluate, 1 if self.checkpoint_and_export else every_steps, self.check_interval_secs
        )
        training = self.train_input_fn, self.train_steps, self.train_hooks, self.saving_listeners
        evaluation = self.eval_input_fn, self.eval_steps, None, self.eval_hooks
        specs = tf_estimator.TrainSpec(*training), tf_estimator.EvalSpec(*evaluation)
        with tf_estimator.refuse_endless(*specs):
            self._train(listeners=[listener], max_steps=self.train_steps)
            metrics, exported = listener.result
            if metrics.get("global_step") != self.estimator.get_variable_value("global_step"):
                metrics, exported = evaluate()
        return metrics, exported or self._export(metrics)

    def _goes_on(self, metrics: Metrics | None, predicate: Callable[..., bool] | None) -> bool:
        """Returns whether the user and the number of steps want to go on."""
        path = self._evaluated if metrics else None
        if predicate and not predicate(metrics, **taken(predicate, checkpoint_path=path)):
            return False
        is_first = metrics is None or self.train_steps is None
        return is_first or bool(metrics["global_step"] < self.train_steps)  # type: ignore[index]

    def _train(
        self, hooks: Sequence[Any] = (), listeners: Sequence[Any] = (), **length: int | None
    ) -> Any:
        hooks = [*(self.train_hooks or ()), *hooks]
        listeners = [*(self.saving_listeners or ()), *listeners]
        return self.estimator.train(
            self.train_input_fn, hooks, saving_listeners=listeners, **length
        )

    def _evaluate(self, name: str | None = None, **changed: Any) -> Any:
        self._evaluated = self.estimator.latest_checkpoint()
        options = {"input_fn": self.eval_input_fn, "steps": self.eval_steps, **changed}
        options["checkpoint_path"] = self._evaluated
        return self.estimator.evaluate(name=name, hooks=list(self.eval_hooks or ()), **options)

    def _export(self, metrics: Metrics) -> list[Any]:
        folder = os.path.join(self.estimator.model_dir, "export")
        evaluated = self._evaluated, metrics, True
        # An evaluator is alone; other workers have evaluated the same as the chief.
        is_alone = self.estimator.config.task_type == "evaluator"
        return [
            exporter.export(self.estimator, os.path.join(folder, exporter.name), *evaluated)
            for exporter in self.export_strategies
            if is_alone or is_chief()
        ]


class _EvaluateOnCheckpoint(tf.compat.v1.train.CheckpointSaverListener):  # type: ignore[misc]
    """Evaluates when a checkpoint is written, at least so many steps and seconds after the last.

    Attributes:
        result: of the last evaluation: the metrics, and the exports.
    """

    def __init__(self, evaluate: Callable[[], Any], every_steps: int, every_s: float) -> None:
        self._evaluate = evaluate
        self._every_steps = every_steps
        self._every_s = every_s
        self._step: int | None = None
        self._next = 0.0  # on the monotonic clock
        self.result: tuple[Metrics, list[Any]] = {}, []

    def after_save(self, session: Any, global_step_value: int) -> None:
        """Evaluates; the first checkpoint, of untrained weights, is passed over."""
        if self._step is None:
            self._step = global_step_value
        elif (
            self._every_steps
            and global_step_value - self._step >= self._every_steps
            and time.monotonic() >= self._next
        ):
            self.result = self._evaluate()
            self._step = global_step_value
            self._next = time.monotonic() + self._every_s
