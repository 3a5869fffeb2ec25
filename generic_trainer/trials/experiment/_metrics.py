"""Metrics that an `Experiment` reports beside those of its estimator."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from generic_trainer import estimator as tf_estimator


@dataclasses.dataclass(frozen=True)
class MetricSpec:
    """A metric of `Experiment(eval_metrics={"name": MetricSpec(...)})`.

    Attributes:
        metric_fn: takes `predictions`, `labels` and, with a `weight_key`, `weights`; returns the
            pair (value, update) of a metric of `tf.metrics`.
        prediction_key: which of the predictions; None takes them all, or the only one.
        label_key: which of the labels; None as above.
        weight_key: the feature that has the weights; None for none.

    Source: `tf.contrib.learn.MetricSpec` of TensorFlow 1.
    """

    metric_fn: Callable[..., Any]
    prediction_key: str | None = None
    label_key: str | None = None
    weight_key: str | None = None

    def create_metric_ops(self, inputs: Any, labels: Any, predictions: Any) -> Any:
        """Returns the pair of a metric; `inputs` are the features."""
        predictions = _chosen(predictions, self.prediction_key)
        arguments = {"predictions": predictions, "labels": _chosen(labels, self.label_key)}
        if self.weight_key is not None:
            arguments["weights"] = inputs[self.weight_key]
        try:
            inspect.signature(self.metric_fn).bind(**arguments)
        except TypeError:  # other names: the original went by the order
            return self.metric_fn(*arguments.values())
        return self.metric_fn(**arguments)


def with_metrics(estimator: Any, metrics: Mapping[Any, Any]) -> Any:
    """Returns an estimator that reports more metrics, as `Experiment` takes them."""

    def metric_fn(features: Any, labels: Any, predictions: Any) -> dict[str, Any]:
        found = {}
        for key, metric in metrics.items():
            name, prediction = key if isinstance(key, tuple) else (key, None)
            spec = metric if isinstance(metric, MetricSpec) else MetricSpec(metric, prediction)
            found[name] = spec.create_metric_ops(features, labels, predictions)
        return found

    return tf_estimator.add_metrics(estimator, metric_fn)


def _chosen(values: Any, key: str | None) -> Any:
    if key is not None:
        return values[key]
    is_lone = isinstance(values, Mapping) and len(values) == 1
    return next(iter(values.values())) if is_lone else values
