"""`tf.contrib`, as far as programs with estimators used it: `tf1.contrib`, or imported from here.

::

    from generic_trainer.estimator import tf1 as tf      # instead of: import tensorflow as tf

    tf.contrib.layers.optimize_loss(loss, tf.contrib.framework.get_global_step(), 0.1, "Adam")

    from generic_trainer.trials.experiment.contrib import slim   # of: from tensorflow.contrib
    import generic_trainer.trials.experiment.contrib.slim as slim

1. `learn` has `Experiment` and its companions, for estimators of `tf.estimator`: those of
   `tf.contrib.learn` itself are gone, and its names of premade ones mean `tf.estimator`'s.
2. `layers`, `slim`, and most of `framework`, `losses`, `metrics` and `training` are those of
   tf_slim, which GenericTrainer's extra `slim` installs.
3. `data`, `rnn` and `estimator` are what became of them in TensorFlow 1.15.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from generic_trainer import estimator as tf_estimator
from generic_trainer._core.files import gfile
from generic_trainer.errors import ConfigurationError

__all__ = ["ExportStrategy", "ModeKeys", "RunConfig", "make_export_strategy"]  # and the parts

# Part of tf.contrib → where its names are looked up, one after another.
_PARTS = {
    "data": ("tf1.data.experimental", "tf1.data"),
    "estimator": ("generic_trainer.estimator", "generic_trainer.estimator.experimental"),
    "framework": ("tf1.train", "tf1", "tf_slim"),
    "layers": ("tf_slim.layers", "tf_slim"),
    "learn": ("generic_trainer.trials.experiment", "tf1.estimator"),
    "losses": ("tf_slim.losses",),
    "metrics": ("tf_slim.metrics",),
    "rnn": ("tf1.nn.rnn_cell", "tf1.nn"),
    "slim": ("tf_slim",),
    "training": (
        "generic_trainer.trials.experiment",
        "tf_slim.training.training",
        "tf_slim.training.evaluation",
    ),
}


class ModeKeys:
    """`tf.contrib.learn.ModeKeys`: the modes of `tf.estimator`, with `INFER` for `PREDICT`."""

    TRAIN, EVAL, INFER, PREDICT = "train", "eval", "infer", "infer"


# Sessions are configured by its `session_config`; the launcher starts all servers.
RunConfig = tf_estimator.RunConfig


class ExportStrategy(NamedTuple):
    """A kind of export, which `Experiment(export_strategies=...)` takes.

    Attributes:
        name: of the folder below `model_dir`/export.
        export_fn: takes the estimator and the folder and, if they are among its arguments,
            `checkpoint_path` and `eval_result`; returns the path of the export.

    Source: `tf.contrib.learn.ExportStrategy` of TensorFlow 1.
    """

    name: str
    export_fn: Callable[..., Any]

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str | None = None,
        eval_result: Any = None,
        is_the_final_export: bool = True,
    ) -> Any:
        """Calls `export_fn`; `is_the_final_export` is an argument of `tf.estimator`'s exporters."""
        named = {"checkpoint_path": checkpoint_path, "eval_result": eval_result}
        known = inspect.signature(self.export_fn).parameters
        named = {name: value for name, value in named.items() if name in known}
        return self.export_fn(estimator, export_path, **named)


def make_export_strategy(
    serving_input_fn: Callable[[], Any],
    default_output_alternative_key: str | None = None,
    assets_extra: dict[str, str] | None = None,
    as_text: bool = False,
    exports_to_keep: int | None = 5,
    strip_default_attrs: bool | None = None,
) -> ExportStrategy:
    """Returns the strategy "Servo", which writes a SavedModel.

    Args:
        serving_input_fn: returns a `ServingInputReceiver`.
        default_output_alternative_key: must be None with estimators of `tf.estimator`.
        assets_extra: path below `assets.extra` → file.
        as_text: whether the SavedModel is text.
        exports_to_keep: older exports are deleted; None keeps all.
        strip_default_attrs: has no effect: they always are.

    Raises:
        ConfigurationError: `default_output_alternative_key` is given.
    """
    if default_output_alternative_key is not None:
        raise ConfigurationError(
            "make_export_strategy(default_output_alternative_key=...) was for estimators of "
            "tf.contrib.learn: name export_outputs in the EstimatorSpec."
        )

    def export_fn(estimator: Any, export_path: str, checkpoint_path: str | None = None) -> Any:
        export = estimator.export_saved_model(
            export_path, serving_input_fn, assets_extra, as_text, checkpoint_path
        )
        if exports_to_keep is not None:
            for time in tf_estimator.times_of_exports(export_path)[:-exports_to_keep]:
                gfile().rmtree(os.path.join(export_path, str(time)))
        return export

    return ExportStrategy("Servo", export_fn)


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


class _Part(ModuleType):
    """A part of tf.contrib."""

    def __getattr__(self, name: str) -> Any:
        part = self.__name__.rpartition(".")[2]
        if name.startswith("__"):
            raise AttributeError(name)
        for source in _PARTS[part]:
            try:
                return getattr(_source(source), name)
            except AttributeError:
                continue
            except ModuleNotFoundError as error:
                raise ConfigurationError(
                    f"tf.contrib.{part}.{name} is looked for in {source}, which is not installed: "
                    "pip install tf_slim, or GenericTrainer's extra `slim`."
                ) from error
        raise AttributeError(f"tf.contrib.{part}.{name} is not in {' or '.join(_PARTS[part])}")


def _source(name: str) -> Any:
    first, *names = name.split(".")
    if first == "tf1":
        return functools.reduce(getattr, names, tf_estimator.tf1)
    return importlib.import_module(name)


_parts = {name: _Part(f"{__name__}.{name}") for name in _PARTS}
sys.modules.update((part.__name__, part) for part in _parts.values())  # for `import ….contrib.slim`


def __getattr__(name: str) -> ModuleType:
    if name in _parts:
        return _parts[name]
    raise AttributeError(
        f"tf.contrib.{name} is not available here; available are {', '.join(_PARTS)}"
    )
