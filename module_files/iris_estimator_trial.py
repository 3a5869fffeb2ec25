"""Determined's `EstimatorTrial` on iris flowers: a premade estimator with feature columns.

Such module files run with their import lines changed. The component takes the experiment
configuration: ``custom_config={"hyperparameters": {...}, "searcher": {...}, "data": {...}}``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_iris

from generic_trainer.estimator import tf
from generic_trainer.trials.estimator import EstimatorTrial, EstimatorTrialContext

__all__ = ["IrisTrial"]

_FEATURES = ("sepal_length", "sepal_width", "petal_length", "petal_width")
_CLASSES = 3


class IrisTrial(EstimatorTrial):
    """A `DNNClassifier` of four measurements in centimetres."""

    def __init__(self, context: EstimatorTrialContext) -> None:
        """Takes `learning_rate` and `layer_size`; `data.validation_records` is held out."""
        self.context = context

    def build_estimator(self) -> Any:
        """Returns the classifier; its optimizer is wrapped as soon as it is there."""
        rate = self.context.get_hparam("learning_rate")
        size = self.context.get_hparam("layer_size")
        optimizer = self.context.wrap_optimizer(tf.compat.v1.train.AdamOptimizer(rate))
        return tf.compat.v1.estimator.DNNClassifier(
            [size, size], self._columns(), n_classes=_CLASSES, optimizer=optimizer
        )

    def build_train_spec(self) -> Any:
        """Returns shuffled batches, which the harness repeats."""
        return tf.estimator.TrainSpec(self._input_fn(training=True))

    def build_validation_spec(self) -> Any:
        """Returns one pass over the flowers that are held out."""
        return tf.estimator.EvalSpec(self._input_fn(training=False), steps=None)

    def build_serving_input_receiver_fns(self) -> dict[str, Callable[..., Any]]:
        """Returns what parses serialized tf.Examples in the exported model."""
        spec = tf.feature_column.make_parse_example_spec(self._columns())
        return {"iris": tf.estimator.export.build_parsing_serving_input_receiver_fn(spec)}

    def _columns(self) -> list[Any]:
        return [tf.feature_column.numeric_column(name) for name in _FEATURES]

    def _input_fn(self, *, training: bool) -> Callable[[], Any]:
        def input_fn() -> Any:
            held_out = self.context.get_data_config()["validation_records"]
            data = self.context.wrap_dataset(_flowers())
            data = data.skip(held_out).shuffle(150) if training else data.take(held_out)
            return data.batch(self.context.get_per_slot_batch_size())

        return input_fn


def _flowers() -> Any:
    """Returns a Dataset of ({feature: float32}, int64), always in the same mixed order."""
    measured, species = load_iris(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(species))
    features = dict(zip(_FEATURES, measured[order].T.astype(np.float32), strict=True))
    return tf.data.Dataset.from_tensor_slices((features, species[order].astype(np.int64)))
