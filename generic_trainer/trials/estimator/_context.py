"""The context of an estimator trial: what wraps optimizer and data, and metrics made by Python."""

import abc
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer.errors import ConfigurationError
from generic_trainer.training import distributed
from generic_trainer.training.resume import not_ahead
from generic_trainer.trials._context import NO_DATASET, TrialContext
from generic_trainer.trials._dataset_cache import DatasetCache
from generic_trainer.trials.errors import CheckFailedError

_BOTH = "Please do not use `context.wrap_dataset(dataset)` for data that are cached."


class MetricReducer(abc.ABC):
    """Computes a metric in two steps: per slot over its batches, then over the slots.

    ::

        class Mean(MetricReducer):
            def __init__(self):
                self.sum, self.count = 0.0, 0

            def accumulate(self, metric):
                self.sum, self.count = self.sum + metric.sum(), self.count + metric.size
                return self.sum, self.count

            def cross_slot_reduce(self, per_slot_metrics):
                sums, counts = zip(*per_slot_metrics)
                return sum(sums) / sum(counts)

    It is not reset between evaluations: make a new one in each call of the model function.

    Source: `determined.estimator.MetricReducer` of Determined 0.13.
    """

    @abc.abstractmethod
    def accumulate(self, metric: Any) -> Any:
        """Takes the values of the next batch; returns the state, of which the last one counts.

        Args:
            metric: NumPy values in the structure that `make_metric` was given.
        """

    @abc.abstractmethod
    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """Returns the metric's value.

        Args:
            per_slot_metrics: what each slot's `accumulate` returned last.
        """


class EstimatorExperimentalContext(DatasetCache):
    """What was experimental in Determined: cached datasets, and metrics computed by Python."""

    def make_metric(self, metric: Any, reducer: Any, numpy_dtype: Any) -> Any:
        """Returns the metric of the context's own `make_metric`."""
        return self._context.make_metric(metric, reducer, numpy_dtype)

    def allgather_metrics(self, metrics: Any) -> list[Any]:
        """Returns the values of all processes, by rank; see `DistributedContext.allgather`."""
        return distributed.gather(metrics)


class EstimatorContext(TrialContext):
    """What the model and input functions call back.

    Attributes:
        experimental: `cache_train_dataset` and `cache_validation_dataset`, and `make_metric` too.
    """

    experimental_class = EstimatorExperimentalContext
    _has_optimizer = False
    _last_value: tf.Tensor | None = None

    def make_metric(
        self, metric: Any, reducer: Callable[[list[Any]], Any] | MetricReducer, numpy_dtype: Any
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
        reduced = reducer if isinstance(reducer, MetricReducer) else None
        if reduced is None and not callable(reducer):
            raise ConfigurationError(
                f"make_metric takes a function or a MetricReducer, but got {reducer!r}"
            )
        dtype = np.dtype(numpy_dtype)  # TensorFlow takes float for float32, NumPy for float64
        tensors = _tensors(metric)
        states: list[Any] = []  # of this process: the last one, or for a function the values

        def accumulate(*values: Any) -> bool:
            value = tf.nest.pack_sequence_as(metric, values)
            if reduced is None:
                states.append(value)
            else:
                states[:] = [reduced.accumulate(value)]
            return True

        def reduce() -> Any:
            of_all = [state for worker in distributed.gather(states) for state in worker]
            reduce_all: Any = reducer if reduced is None else reduced.cross_slot_reduce
            return np.asarray(reduce_all(of_all or [None])).astype(dtype)

        update = tf.numpy_function(accumulate, tensors, tf.bool)
        last = self._last_value  # values are read in a fixed order
        ordered = [last] if last is not None and last.graph is update.graph else []
        with tf.control_dependencies(ordered):
            value = self._last_value = tf.numpy_function(reduce, [], dtype)
        return value, update.op

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Returns the optimizer; on several slots the estimator has gradients averaged.

        Must be called once at least; the optimizer may be None where the estimator has its own.
        """
        self._has_optimizer = True
        return optimizer

    def check_optimizer(self) -> None:
        """Raises `CheckFailedError` if no optimizer was wrapped."""
        if not self._has_optimizer:
            raise CheckFailedError(
                "Please pass your optimizer into `context.wrap_optimizer(optimizer)` right after "
                "creating it."
            )

    def resumed(self, dataset: Any) -> Any:
        """Returns the training data without an end, from the next batch on.

        Data other than Datasets are returned as they are.

        Args:
            dataset: the result of the user's input function.

        Raises:
            CheckFailedError: the data were neither wrapped nor cached, or both.
        """
        is_cached = "train" in self.experimental.used
        if self._has_dataset == is_cached:
            raise CheckFailedError(_BOTH if is_cached else NO_DATASET)
        if not isinstance(dataset, tf.data.Dataset | tf.compat.v1.data.Dataset):
            return dataset
        # Skipping in a seeded pipeline leads to the batch that the straight run would see next.
        return not_ahead(dataset.repeat().skip(self._run.batches_trained))


class EstimatorTrialContext(EstimatorContext):
    """The context of an `EstimatorTrial`.

    Source: `determined.estimator.EstimatorTrialContext` of Determined 0.13.
    """


def _tensors(metric: Any) -> list[tf.Tensor]:
    """Returns the tensors of a metric, in the order of `tf.nest`."""
    if isinstance(metric, dict) and not all(isinstance(name, str) for name in metric):
        raise TypeError(f"the keys of a metric must be strings, but got {sorted(metric)}")
    try:
        return [tf.convert_to_tensor(value) for value in tf.nest.flatten(metric)]
    except (TypeError, ValueError) as error:
        raise TypeError(
            "make_metric takes a tensor, a flat list or tuple of tensors or a dict of them, but "
            f"got something else: {error}"
        ) from error
