"""What an `EstimatorTrial` is given: its configuration, and what wraps optimizer and data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from generic_trainer.trials._context import TrialContext
from generic_trainer.trials._errors import CheckFailedError
from generic_trainer.trials._trial import TrialRun
from generic_trainer.trials.estimator._reducer import MetricReducer, MetricValues

__all__ = ["EstimatorContext", "EstimatorExperimentalContext", "EstimatorTrialContext"]

_NO_OPTIMIZER = (
    "Please pass your optimizer into `context.wrap_optimizer(optimizer)` right after creating it."
)
_NO_DATASET = (
    "Please pass your datasets (train and test) into `context.wrap_dataset(dataset)` right after "
    "creating them."
)


class EstimatorExperimentalContext:
    """What was experimental in Determined: metrics computed by Python."""

    def __init__(self) -> None:
        """Starts with no metrics."""
        self._metrics = MetricValues()

    def make_metric(
        self,
        metric: Any,
        reducer: Callable[[list[Any]], Any] | MetricReducer,
        numpy_dtype: Any,
    ) -> tuple[tf.Tensor, tf.Operation]:
        """Returns an evaluation metric for `eval_metric_ops` that Python code computes.

        Args:
            metric: a tensor, a flat list or tuple of tensors, or a dict of tensors by name. Other
                values that TensorFlow can convert are constants.
            reducer: a function of the list of all batches' values, or a MetricReducer.
            numpy_dtype: the NumPy type that the result is converted to.

        Returns:
            The operations that read the value and that take in the next batch.

        Raises:
            TypeError: `metric` is none of these.
        """
        return self._metrics.make(metric, reducer, numpy_dtype)


class EstimatorContext(TrialContext):
    """What the model and input functions call back.

    Attributes:
        experimental: `make_metric`.
    """

    def __init__(self, run: TrialRun, *, managed_training: bool = True) -> None:
        """Takes a trial; see `TrialContext`."""
        super().__init__(run, managed_training=managed_training)
        self.experimental = EstimatorExperimentalContext()
        self._has_optimizer = self._has_dataset = False

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Returns the optimizer as it is; on several slots the estimator's strategy reduces.

        Must be called once at least; the optimizer may be None where the estimator has its own.
        """
        self._has_optimizer = True
        return optimizer

    def wrap_dataset(self, dataset: Any, shard_dataset: bool = True) -> Any:
        """Returns the data as it is; on several slots each takes every n-th batch.

        Must be called for the training data at least.

        Args:
            dataset: a `tf.data.Dataset`.
            shard_dataset: without effect: there is one process, which reads all data.
        """
        self._has_dataset = True
        return dataset

    def check_optimizer(self) -> None:
        """Raises `CheckFailedError` if no optimizer was wrapped."""
        if not self._has_optimizer:
            raise CheckFailedError(_NO_OPTIMIZER)

    def check_dataset(self) -> None:
        """Raises `CheckFailedError` if no dataset was wrapped."""
        if not self._has_dataset:
            raise CheckFailedError(_NO_DATASET)


class EstimatorTrialContext(EstimatorContext):
    """The context of an `EstimatorTrial`.

    Source: `determined.estimator.EstimatorTrialContext` of Determined 0.13.
    """
