"""The context of an estimator trial: its configuration, and what wraps optimizer and data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from generic_trainer.trials._context import BatchSizes, TrialContext
from generic_trainer.trials._dataset_cache import DatasetCache
from generic_trainer.trials._trial import TrialRun
from generic_trainer.trials.errors import CheckFailedError
from generic_trainer.trials.estimator._reducer import MetricReducer, metric_of

_NO_DATASET = (
    "Please pass your datasets (train and test) into `context.wrap_dataset(dataset)` right after "
    "creating them."
)
_BOTH = (
    "Please do not use: `context.wrap_dataset(dataset)` if using "
    "`@context.experimental.cache_train_dataset(dataset_name, dataset_version)` and "
    "`@context.experimental.cache_validation_dataset(dataset_name, dataset_version)`."
)


class EstimatorExperimentalContext(DatasetCache):
    """What was experimental in Determined: cached datasets, and metrics computed by Python."""

    def __init__(
        self, run: TrialRun, batch_sizes: BatchSizes, *, managed_training: bool = True
    ) -> None:
        """Takes what the cache reads by."""
        super().__init__(run, batch_sizes, managed_training=managed_training)
        self._last_value: tf.Tensor | None = None

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
        value, update = metric_of(metric, reducer, numpy_dtype, after=self._last_value)
        self._last_value = value  # values are read in a fixed order
        return value, update


class EstimatorContext(TrialContext):
    """What the model and input functions call back.

    Attributes:
        experimental: `make_metric`, `cache_train_dataset` and `cache_validation_dataset`.
    """

    def __init__(self, run: TrialRun, *, managed_training: bool = True) -> None:
        """Takes a trial; see `TrialContext`."""
        super().__init__(run, managed_training=managed_training)
        self.experimental = EstimatorExperimentalContext(
            run, self._batch_sizes, managed_training=managed_training
        )
        self._has_optimizer = self._has_dataset = False

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Returns the optimizer as it is; on several slots the estimator's strategy reduces.

        Must be called once at least; the optimizer may be None where the estimator has its own.
        """
        self._has_optimizer = True
        return optimizer

    def wrap_dataset(self, dataset: Any, shard_dataset: bool = True) -> Any:
        """Returns the data as it is; on several slots each takes every n-th batch.

        Must be called for the training data at least, unless they are cached.

        Args:
            dataset: a `tf.data.Dataset`.
            shard_dataset: without effect: there is one process, which reads all data.
        """
        self._has_dataset = True
        return dataset

    def check_optimizer(self) -> None:
        """Raises `CheckFailedError` if no optimizer was wrapped."""
        if not self._has_optimizer:
            raise CheckFailedError(
                "Please pass your optimizer into `context.wrap_optimizer(optimizer)` right after "
                "creating it."
            )

    def resumed(self, dataset: Any) -> Any:
        """Returns the training data without an end, from where training stands.

        Data that are no Dataset are returned as they are.

        Args:
            dataset: what the user's input function returned.

        Raises:
            CheckFailedError: the data were neither wrapped nor cached, or both.
        """
        is_cached = self.experimental.caches_training
        if self._has_dataset == is_cached:
            raise CheckFailedError(_BOTH if is_cached else _NO_DATASET)
        if not isinstance(dataset, tf.data.Dataset | tf.compat.v1.data.Dataset):
            return dataset
        if is_cached:
            self.experimental.resume(dataset)
            return dataset.repeat()
        # Skipping in a seeded pipeline leads to the batch that the straight run would see next.
        return dataset.repeat().skip(self._run.batches_trained * self._run.slots)


class EstimatorTrialContext(EstimatorContext):
    """The context of an `EstimatorTrial`.

    Source: `determined.estimator.EstimatorTrialContext` of Determined 0.13.
    """
