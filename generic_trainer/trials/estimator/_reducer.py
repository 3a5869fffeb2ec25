"""Validation metrics that Python computes from what the graph yields, batch after batch."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from generic_trainer.errors import ConfigurationError


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


def metric_of(
    metric: Any,
    reducer: Callable[[list[Any]], Any] | MetricReducer,
    numpy_dtype: Any,
    *,
    after: tf.Tensor | None,
) -> tuple[tf.Tensor, tf.Operation]:
    """See `EstimatorExperimentalContext.make_metric`; `after` is a value that is read before."""
    reduced = reducer if isinstance(reducer, MetricReducer) else _Listing(reducer)
    dtype = np.dtype(numpy_dtype)  # TensorFlow takes float for float32, NumPy for float64
    tensors, rebuild = _flattened(metric)
    state: Any = None

    def accumulate(*values: Any) -> bool:
        nonlocal state
        state = reduced.accumulate(rebuild(values))
        return True

    def reduce() -> Any:
        return np.asarray(reduced.cross_slot_reduce([state])).astype(dtype)

    update = tf.numpy_function(accumulate, tensors, tf.bool)
    ordered = [after] if after is not None and after.graph is update.graph else []
    with tf.control_dependencies(ordered):
        return tf.numpy_function(reduce, [], dtype), update.op


class _Listing(MetricReducer):
    """Calls a function with the values of all batches of all slots."""

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        if not callable(function):
            raise ConfigurationError(
                f"make_metric takes a function or a MetricReducer, but got {function!r}"
            )
        self._function = function
        self._values: list[Any] = []

    def accumulate(self, metric: Any) -> list[Any]:
        self._values.append(metric)
        return self._values

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        return self._function([value for values in per_slot_metrics for value in values])


def _flattened(metric: Any) -> tuple[list[tf.Tensor], Callable[[Sequence[Any]], Any]]:
    """Returns the tensors of a metric, and what puts their values into its structure."""
    if isinstance(metric, dict):
        if not all(isinstance(name, str) for name in metric):
            raise TypeError(f"the keys of a metric must be strings, but got {sorted(metric)}")
        names = list(metric)
        return _tensors(metric.values()), lambda values: dict(zip(names, values, strict=True))
    if isinstance(metric, (list, tuple)):
        return _tensors(metric), list
    return _tensors([metric]), lambda values: values[0]


def _tensors(values: Any) -> list[tf.Tensor]:
    try:
        return [tf.convert_to_tensor(value) for value in values]
    except (TypeError, ValueError) as error:
        raise TypeError(
            "make_metric takes a tensor, a flat list or tuple of tensors or a dict of them, but "
            f"got something else: {error}"
        ) from error
