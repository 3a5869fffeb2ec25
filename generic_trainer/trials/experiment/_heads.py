"""Heads of `tf.contrib.estimator`: the loss, metrics and predictions of an estimator's model.

They are the heads of `tf.estimator`, except that `create_estimator_spec` takes an optimizer of
TensorFlow 1, trains all variables, and runs the updates of batch normalization. A module of its
own, because no other part of `tf.contrib` had these names.
"""

import functools
from collections.abc import Callable
from typing import Any

from generic_trainer import estimator as tf_estimator
from generic_trainer.estimator import tf1

# Reduction then → now; the others are not for heads.
_REDUCTIONS = {
    "weighted_sum": "sum",
    "weighted_sum_over_batch_size": "sum_over_batch_size",
}


def _head(name: str, *order: str) -> Callable[..., Any]:
    """Returns a function that makes heads of a class of `tf.estimator`.

    Args:
        name: of the class.
        *order: the names of the first arguments then, if their order has changed.
    """

    def make(*args: Any, loss_reduction: str | None = None, **named: Any) -> Any:
        if loss_reduction is not None:
            named["loss_reduction"] = _REDUCTIONS.get(loss_reduction, loss_reduction)
        named |= zip(order, args, strict=False)
        return _class(name)(*args[len(order) :], **named)

    return make


@functools.cache
def _class(name: str) -> type[Any]:
    base: Any = getattr(tf_estimator, name)

    class Head(base):  # type: ignore[misc]  # the base is looked up
        def create_estimator_spec(
            self,
            features: Any,
            mode: str,
            logits: Any,
            labels: Any = None,
            optimizer: Any = None,
            train_op_fn: Callable[[Any], Any] | None = None,
            regularization_losses: Any = None,
        ) -> Any:
            def minimize(loss: Any) -> Any:
                return optimizer.minimize(loss, tf1.train.get_global_step())

            return super().create_estimator_spec(
                features,
                mode,
                logits,
                labels,
                train_op_fn=train_op_fn if optimizer is None else minimize,
                update_ops=tf1.get_collection(tf1.GraphKeys.UPDATE_OPS),
                regularization_losses=regularization_losses,
            )

    return Head


binary_classification_head = _head("BinaryClassHead")
logistic_regression_head = _head("LogisticRegressionHead")
multi_class_head = _head("MultiClassHead")
multi_head = _head("MultiHead")
multi_label_head = _head("MultiLabelHead")
poisson_regression_head = _head("PoissonRegressionHead", "weight_column", "label_dimension")
regression_head = _head("RegressionHead", "weight_column", "label_dimension")
